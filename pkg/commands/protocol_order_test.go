package commands_test

import (
	"errors"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// orderedBy returns a service whose protocol has the order block.
func orderedBy(t *testing.T, order string) *bundle {
	t.Helper()
	b := setup(t, 0)
	text := "protocol_id: ingest_v1\nrequest_types: [doc.ingest]\n" + order +
		"\nsteps:\n  - {step_id: ocr, step_type: OCR, service: ocr}\n"
	b.protocols.Swap(musttest.Make[fs.FS](t, commands.LoadProtocolsFS, fstest.MapFS{"p.yaml": {Data: []byte(text)}}))
	return b
}

func TestOrderOfACommand(t *testing.T) {
	t.Parallel()
	type order = statemachine.Order
	for _, test := range []struct {
		name, protocol, fields string
		want                   order
	}{
		{"no key", "", "", order{}},
		{"the command's key", "", `"order_key":"k"`, order{Key: "k", Mode: "fifo", Blocks: true}},
		{"the command's key and mode", "", `"order_key":"k","order_mode":"newest"`, order{Key: "k", Mode: "newest"}},
		{"the document", "order: {key: doc_id}", `"doc_id":"d"`, order{Key: "d", Mode: "fifo", Blocks: true}},
		{"no document", "order: {key: doc_id}", "", order{}},
		{"a part of the payload", "order: {key: /language, prefix: 'lang: '}", "", order{Key: "lang: en", Mode: "fifo", Blocks: true}},
		{"an entry of a list", "order: {key: /list/1}", "", order{Key: "b", Mode: "fifo", Blocks: true}},
		{"no such part", "order: {key: /no/such}", "", order{}},
		{"a part that is a number", "order: {key: /n}", "", order{}},
		{"a null", "order: {key: /none}", "", order{}},
		{"the command's key instead of the document", "order: {key: doc_id, prefix: 'p:'}", `"doc_id":"d","order_key":"k"`, order{Key: "k", Mode: "fifo", Blocks: true}},
		{"the command's key instead of a required one", "order: {key: /no, required: true}", `"order_key":"k"`, order{Key: "k", Mode: "fifo", Blocks: true}},
		{"a policy without a key", "order: {mode: reject}", `"order_key":"k"`, order{Key: "k", Mode: "reject"}},
		{"the protocol's mode", "order: {key: /language, mode: newest}", "", order{Key: "en", Mode: "newest"}},
		{"the default of the command's mode", "order: {key: /language, mode: newest}", `"order_mode":"fifo"`, order{Key: "en", Mode: "fifo", Blocks: true}},
		{"a file that continues", "order: {key: /language, on_failure: continue}", "", order{Key: "en", Mode: "fifo"}},
		{"a file that blocks", "order: {key: /language, on_failure: block}", `"order_mode":"reject"`, order{Key: "en", Mode: "reject", Blocks: true}},
		{"a file that cuts", "order: {key: /language, mode: newest, on_running: cancel}", "", order{Key: "en", Mode: "newest", CancelsRunning: true}},
		{"a file that cuts, and fifo", "order: {key: /language, mode: newest, on_running: cancel}", `"order_mode":"fifo"`, order{Key: "en", Mode: "fifo", Blocks: true}},
		{"a file that finishes", "order: {key: /language, mode: newest, on_running: finish}", "", order{Key: "en", Mode: "newest"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			fields := strings.TrimPrefix(test.fields+`,"tenant_id"`, ",")
			accepted, err := orderedBy(t, test.protocol).Submit(t.Context(),
				ingest(`"tenant_id"`, fields, `"n":1.50`, `"n":1.50,"list":["a","b"],"none":null`), commands.Headers{}, anyone)
			musttest.NoError(t, err)
			if diff := cmp.Diff(test.want, accepted.Job.Order); diff != "" {
				t.Errorf("order (-want +got):\n%s", diff)
			}
		})
	}
}

// A command that the protocol gives no key, or a bad one, is refused with its place in the command.
func TestOrderKeysThatAreRefused(t *testing.T) {
	t.Parallel()
	const because = ", because the protocol ingest_v1 takes the order key from it"
	const required = "is required, because the protocol ingest_v1 orders its commands by a key"
	for _, test := range []struct {
		name, protocol, fields string
		code                   apierror.Code
		pointer, message       string
	}{
		{"a mode without a key", "", `"order_mode":"fifo"`, apierror.InvalidEnvelope, "/order_mode", "needs an order_key: the protocol ingest_v1 gives the command none"},
		{"a mode without a derived key", "order: {key: doc_id}", `"order_mode":"fifo"`, apierror.InvalidEnvelope, "/order_mode", "needs an order_key: the protocol ingest_v1 gives the command none"},
		{"no key", "order: {required: true}", "", apierror.InvalidEnvelope, "/order_key", required},
		{"no document", "order: {key: doc_id, required: true}", "", apierror.InvalidEnvelope, "/doc_id", required},
		{"no such part", "order: {key: /a~1b/c, required: true}", "", apierror.PayloadInvalid, "/payload/a~1b/c", required},
		{"a part that is a number", "order: {key: /n, required: true}", "", apierror.PayloadInvalid, "/payload/n", "must be a string, not a number" + because},
		{"an empty part", "order: {key: /empty, prefix: p}", "", apierror.PayloadInvalid, "/payload/empty", "must not be empty or blank" + because},
		{"a line break", "order: {key: /line}", "", apierror.PayloadInvalid, "/payload/line", "must not contain control characters" + because},
		{"a document that is too long with its prefix", "order: {key: doc_id, prefix: 'p:'}", `"doc_id":"` + strings.Repeat("d", 255) + `"`, apierror.TooLarge, "/doc_id", "is 255 bytes long; at most 254 are allowed" + because},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			fields := strings.TrimPrefix(test.fields+`,"tenant_id"`, ",")
			_, err := orderedBy(t, test.protocol).Submit(t.Context(),
				ingest(`"tenant_id"`, fields, `"n":1.50`, `"n":1.50,"empty":"","line":"a\nb"`), commands.Headers{}, anyone)
			told, ok := errors.AsType[*apierror.Error](err)
			if !ok || told.Code != test.code {
				t.Fatalf("answered %v, want %s", err, test.code)
			}
			if diff := cmp.Diff([]apierror.Violation{{Pointer: test.pointer, Message: test.message}}, told.Errors); diff != "" {
				t.Errorf("violations (-want +got):\n%s", diff)
			}
		})
	}
}

// Key and mode are no part of the idempotency hash, and a replay is not refused for its mode.
func TestSubmit_AnotherOrderIsTheSameCommand(t *testing.T) {
	t.Parallel()
	b := setup(t, 0)
	first, err := b.Submit(t.Context(), ingest(`"tenant_id"`, `"order_key":"k","tenant_id"`), commands.Headers{}, anyone)
	musttest.NoError(t, err)
	for _, fields := range []string{"", `"order_key":"other","order_mode":"reject",`, `"order_mode":"newest",`} {
		again, err := b.Submit(t.Context(), ingest(`"tenant_id"`, fields+`"tenant_id"`), commands.Headers{}, anyone)
		if err != nil || !again.Replayed || again.Job.ID != first.Job.ID || again.Job.Order.Key != "k" {
			t.Errorf("%s: %+v, %v", fields, again, err)
		}
	}
}

func TestPayloadExample_HoldsARequiredOrderKey(t *testing.T) {
	t.Parallel()
	registry := musttest.Make[fs.FS](t, commands.LoadProtocolsFS, protocolFolder("p.yaml", smallProtocol("order: {key: /customer/id, required: true}", "")))
	if got := string(registry.Protocols()[0].PayloadExample); got != `{"customer":{"id":"key"}}` {
		t.Errorf("the example is %s", got)
	}
}
