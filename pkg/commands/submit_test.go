package commands_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/routing"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
)

const file = `
protocol_id: ingest_v1
request_types: [doc.ingest]
schema_versions: ["1"]
steps:
  - {step_id: ocr, step_type: OCR, service: ocr, input: job, ack_timeout: 5s,
     payload_schema: {type: object, required: [language], properties: {language: {type: string}}}}
  - {step_id: burst, step_type: B, service: b, input: previous}
`

type bundle struct {
	*commands.Service
	ledger    *ledgertest.Ledger
	counter   *storetest.Counter
	protocols *commands.ProtocolHolder
}

func setup(t *testing.T, limit int) *bundle {
	t.Helper()
	store, counter := storetest.Counting(memstore.New(memstore.Options{}))
	l := ledgertest.Open(t, ledger.Config{Store: store, Limit: func(string) int { return limit }})
	registry := musttest.Make[fs.FS](t, commands.LoadProtocolsFS, fstest.MapFS{"ingest.yaml": {Data: []byte(file)}})
	b := &bundle{ledger: l, counter: counter, protocols: commands.NewProtocolHolder(registry)}
	b.restart(t, commands.Policy{AllowedRefs: []string{"s3"}})
	return b
}

// restart replaces the service by one with that policy, on the same jobs.
func (b *bundle) restart(t *testing.T, policy commands.Policy) {
	t.Helper()
	router := musttest.Make(t, routing.New, routing.Config{})
	b.Service = musttest.Make(t, commands.New, commands.Config{
		Ledger: b.ledger.Ledger, Protocols: b.protocols, Router: router, Policy: policy,
		Defaults: statemachine.Policy{AckTimeout: 30 * time.Second, Lease: time.Minute, MaxAttempts: 3},
	})
}

// Submit prepares a command and accepts it.
func (b *bundle) Submit(ctx context.Context, body []byte, headers commands.Headers, authorize commands.Authorize) (ledger.Accepted, error) {
	submission, err := b.Prepare(body, headers, authorize)
	if err != nil {
		return ledger.Accepted{}, err
	}
	return submission.Accept(ctx)
}

// anyone lets every caller submit for every tenant.
func anyone(string) error { return nil }

// ingest is a valid command; the pairs replace parts of it.
func ingest(pairs ...string) []byte {
	text := `{"tenant_id":"tenant_a","request_type":"doc.ingest","schema_version":"1",` +
		`"input_ref":{"uri":"s3://b/in"},"output_ref":{"uri":"s3://b/out"},"payload":{"language":"en","n":1.50}}`
	return []byte(strings.NewReplacer(pairs...).Replace(text))
}

func TestSubmit_MakesAJobOfTheProtocol(t *testing.T) {
	t.Parallel()
	b := setup(t, 0)
	accepted, err := b.Submit(t.Context(), ingest(), commands.Headers{IdempotencyKey: "k"}, anyone)
	musttest.NoError(t, err)
	agg := b.ledger.Read(accepted.Job.ID)
	ocr := agg.Steps[0]
	if agg.Job.ProtocolID != "ingest_v1" || agg.Job.IdempotencyKey != "k" || accepted.Job.CorrelationID == "" || len(agg.Steps) != 2 {
		t.Errorf("job %+v", agg.Job)
	}
	if ocr.Policy.AckTimeout != 5*time.Second || ocr.Policy.Lease != time.Minute || ocr.Policy.MaxAttempts != 3 {
		t.Errorf("policy %+v", ocr.Policy)
	}
	if ocr.Routing.Lane != 15 || ocr.Routing.Topic != "global-bus-p15" || ocr.Routing.DecisionSource != "default" {
		t.Errorf("routing %+v", ocr.Routing)
	}
}

func TestSubmit_AnotherSpellingIsTheSameCommand(t *testing.T) {
	t.Parallel()
	b := setup(t, 0)
	first, err := b.Submit(t.Context(), ingest(), commands.Headers{}, anyone)
	musttest.NoError(t, err)
	for _, same := range [][]byte{ingest("1.50", "1.5"), ingest("1.50", "15e-1"), ingest(`"n"`, `"gone":null,"n"`)} {
		again, err := b.Submit(t.Context(), same, commands.Headers{}, anyone)
		if err != nil || !again.Replayed || again.Job.ID != first.Job.ID {
			t.Errorf("%s: %+v, %v", same, again, err)
		}
	}
	big, err := b.Submit(t.Context(), ingest("1.50", "9007199254740992"), commands.Headers{}, anyone)
	musttest.NoError(t, err)
	bigger, err := b.Submit(t.Context(), ingest("1.50", "9007199254740993"), commands.Headers{}, anyone)
	if err != nil || bigger.Job.ID == big.Job.ID {
		t.Errorf("2^53 and 2^53+1 are one command: %v", err)
	}
}

func TestSubmit_RefusesWithTheReasonAndWritesNothing(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		body    []byte
		code    apierror.Code
		pointer string
	}{
		{"not JSON", []byte(`{`), apierror.InvalidJSON, ""},
		{"a duplicate key", ingest(`"language"`, `"n":1,"language"`), apierror.InvalidJSON, ""},
		{"a missing field", ingest(`"tenant_id":"tenant_a",`, ""), apierror.InvalidEnvelope, "/tenant_id"},
		{"an unknown field", ingest(`"tenant_id"`, `"tenantid":1,"tenant_id"`), apierror.InvalidEnvelope, "/tenantid"},
		{"BURST without a doc_id", ingest(`"tenant_id"`, `"mode":"BURST","tenant_id"`), apierror.InvalidEnvelope, "/doc_id"},
		{"an unknown request type", ingest("doc.ingest", "doc.eat"), apierror.UnknownRequestType, "/request_type"},
		{"another schema version", ingest(`"1"`, `"2"`), apierror.SchemaVersionUnsupported, "/schema_version"},
		{"a payload against the schema", ingest(`"en"`, `7`), apierror.PayloadInvalid, "/payload/language"},
		{"a reference of another scheme", ingest("s3://b/in", "http://b/in"), apierror.RefInvalid, "/input_ref/uri"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, 0)
			b.counter.Reset()
			_, err := b.Submit(t.Context(), test.body, commands.Headers{}, anyone)
			known, ok := errors.AsType[*apierror.Error](err)
			if !ok || known.Code != test.code {
				t.Fatalf("answered %v, want %s", err, test.code)
			}
			found := test.pointer == ""
			for _, violation := range known.Errors {
				found = found || violation.Pointer == test.pointer
			}
			if !found {
				t.Errorf("violations %+v do not name %s", known.Errors, test.pointer)
			}
			if spent := b.counter.Counts(); spent.Commits != 0 {
				t.Error("something was written")
			}
		})
	}
}

func TestSubmit_KeysAndLimits(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	if _, err := b.Submit(t.Context(), ingest(), commands.Headers{IdempotencyKey: "k"}, anyone); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		body []byte
		key  string
		code apierror.Code
	}{
		"the key of another command": {ingest(`"en"`, `"de"`), "k", apierror.IdempotencyMismatch},
		"one job too many":           {ingest(`"en"`, `"de"`), "l", apierror.TenantLimit},
	} {
		_, err := b.Submit(t.Context(), test.body, commands.Headers{IdempotencyKey: test.key}, anyone)
		if known, ok := errors.AsType[*apierror.Error](err); !ok || known.Code != test.code {
			t.Errorf("%s: answered %v", name, err)
		}
	}
	if again, err := b.Submit(t.Context(), ingest(), commands.Headers{IdempotencyKey: "k"}, anyone); err != nil || !again.Replayed {
		t.Errorf("a replay at the limit answered %v", err)
	}
}

// A repeated command is answered with its job even if the protocols would refuse it now;
// any other is refused.
func TestSubmit_AReplayIsNeverRefused(t *testing.T) {
	t.Parallel()
	for name, changed := range map[string]string{
		"the request type is gone":    strings.Replace(file, "doc.ingest", "doc.other", 1),
		"the schema is stricter":      strings.Replace(file, "required: [language]", "required: [language, more]", 1),
		"the version is not taken":    strings.Replace(file, `["1"]`, `["2"]`, 1),
		"a step wants a document now": strings.Replace(file, "service: b,", "service: b, mode: BURST,", 1),
	} {
		for _, headers := range []commands.Headers{{}, {IdempotencyKey: "k"}} {
			b := setup(t, 0)
			first, err := b.Submit(t.Context(), ingest(), headers, anyone)
			musttest.NoError(t, err)
			registry := musttest.Make[fs.FS](t, commands.LoadProtocolsFS, fstest.MapFS{"ingest.yaml": {Data: []byte(changed)}})
			b.protocols.Swap(registry)
			again, err := b.Submit(t.Context(), ingest(), headers, anyone)
			if err != nil || !again.Replayed || again.Job.ID != first.Job.ID {
				t.Errorf("%s: %+v, %v", name, again, err)
			}
			var told *apierror.Error
			if _, err := b.Submit(t.Context(), ingest("1.50", "1.51"), headers, anyone); !errors.As(err, &told) || told.Code.Status() >= 500 {
				t.Errorf("%s, another command: %v", name, err)
			}
		}
	}
}

// The same holds if the server has another policy since.
func TestSubmit_AReplayIsNotRefusedByAnotherPolicy(t *testing.T) {
	t.Parallel()
	called := func(body []byte) []byte {
		return append(bytes.TrimSuffix(bytes.TrimSpace(body), []byte("}")), `,"callback_urls":["https://example.com/"]}`...)
	}
	for name, policy := range map[string]commands.Policy{
		"references":   {AllowedRefs: []string{"gs"}},
		"payloads":     {MaxPayloadBytes: 2},
		"callbacks":    {CheckCallbackURL: func(string) string { return "is not allowed" }},
		"all together": {AllowedRefs: []string{"gs"}, MaxPayloadBytes: 2},
	} {
		for _, headers := range []commands.Headers{{}, {IdempotencyKey: "k"}} {
			b := setup(t, 0)
			first, err := b.Submit(t.Context(), called(ingest()), headers, anyone)
			musttest.NoError(t, err)
			b.restart(t, policy)
			again, err := b.Submit(t.Context(), called(ingest()), headers, anyone)
			if err != nil || !again.Replayed || again.Job.ID != first.Job.ID {
				t.Errorf("%s: %+v, %v", name, again, err)
			}
			var told *apierror.Error
			if _, err := b.Submit(t.Context(), called(ingest("1.50", "1.51")), headers, anyone); !errors.As(err, &told) ||
				told.Code == apierror.IdempotencyMismatch || told.Code.Status() >= 500 {
				t.Errorf("%s, another command: %v", name, err)
			}
		}
	}
}

// A caller that may not submit for a tenant learns nothing about its commands: neither
// whether the protocols would accept this one, nor whether it has a job.
func TestSubmit_AsksAboutTheTenantOfTheJobFirst(t *testing.T) {
	t.Parallel()
	b := setup(t, 0)
	if _, err := b.Submit(t.Context(), ingest(), commands.Headers{IdempotencyKey: "k"}, anyone); err != nil {
		t.Fatal(err)
	}
	before := b.counter.Counts()
	for name, refused := range map[string][]byte{
		"a replay": ingest(), "a new command": ingest(`"en"`, `"de"`), "one of no protocol": ingest("doc.ingest", "doc.other"),
	} {
		forbidden := apierror.Newf(apierror.Forbidden, "Not for this tenant.")
		var asked []string
		_, err := b.Submit(t.Context(), refused, commands.Headers{IdempotencyKey: "k"}, func(tenantID string) error {
			asked = append(asked, tenantID)
			return forbidden
		})
		if !errors.Is(err, forbidden) || len(asked) != 1 || asked[0] != "tenant_a" {
			t.Errorf("%s: answered %v, asked about %q", name, err, asked)
		}
	}
	if after := b.counter.Counts(); after != before {
		t.Errorf("the store was asked: %+v, %+v before", after, before)
	}
}
