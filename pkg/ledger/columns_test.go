package ledger

import (
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// fill sets every exported field to a different value.
func fill(v reflect.Value, n *int) {
	*n++
	switch field := v.Addr().Interface().(type) {
	case *time.Time:
		*field = time.UnixMilli(int64(*n)).UTC()
		return
	case *time.Duration:
		*field = time.Duration(*n) * time.Millisecond
		return
	case *json.RawMessage:
		*field, _ = json.Marshal(map[string]int{"n": *n})
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString("text " + strings.Repeat("x", *n))
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(*n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n)
	case reflect.Float64:
		v.SetFloat(float64(*n) / 1000)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(v.Index(0), n)
		fill(v.Index(1), n)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(v.Field(i), n)
			}
		}
	default:
		panic("a field of kind " + v.Kind().String())
	}
}

func filled[T any]() T {
	var row T
	fill(reflect.ValueOf(&row).Elem(), new(int))
	return row
}

// stored returns the row as a store may return it, with its properties in any order.
func stored(p tablestore.Properties) *tablestore.Row {
	rand.Shuffle(len(p), func(i, j int) { p[i], p[j] = p[j], p[i] })
	return &tablestore.Row{Key: tablestore.Key{Partition: "job", Row: "ROW"}, Properties: p}
}

// holds checks that a codec stores every field of its row, in any order.
func holds[T any](t *testing.T, c *tablestore.Codec[T]) {
	t.Helper()
	want := filled[T]()
	var got T
	if err := c.Decode(stored(c.Encode(&want, nil)), &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmp.FilterPath(unexported, cmp.Ignore())); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// unexported reports whether the path ends at a field that reflection cannot set.
func unexported(path cmp.Path) bool {
	field, ok := path.Last().(cmp.StructField)
	return ok && strings.ToLower(field.Name()[:1]) == field.Name()[:1]
}

func TestColumns_HoldEveryFieldOfARow(t *testing.T) {
	t.Parallel()
	t.Run("step", func(t *testing.T) { t.Parallel(); holds(t, stepCodec) })
	t.Run("outbox", func(t *testing.T) { t.Parallel(); holds(t, outboxCodec) })
	t.Run("webhook", func(t *testing.T) { t.Parallel(); holds(t, webhookCodec) })
	t.Run("item", func(t *testing.T) { t.Parallel(); holds(t, itemCodec) })
	t.Run("index", func(t *testing.T) { t.Parallel(); holds(t, indexCodec) })
}

func TestColumns_HoldEveryFieldOfAJobAndItsHead(t *testing.T) {
	t.Parallel()
	job := filled[statemachine.Job]()
	h := head{
		Entry: entryRef{Timer, time.UnixMilli(1).UTC(), "nonce"}, Slot: slotRef{"live:001", "tenant:job", true}, Record: "hash:1",
		Tombstone: true,
	}
	p := encodeJob(&job, &h, nil)
	var gotJob statemachine.Job
	var gotHead head
	if err := decodeJob(stored(p), &gotJob, &gotHead); err != nil || gotHead != h {
		t.Fatalf("read %+v, %v", gotHead, err)
	}
	if diff := cmp.Diff(job, gotJob); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A filter such as "lane eq 0" finds no row without the column.
func TestColumns_HaveANumberThatIsZero(t *testing.T) {
	t.Parallel()
	for name, p := range map[string]tablestore.Properties{
		"job":      encodeJob(&statemachine.Job{}, &head{}, nil),
		"step":     stepCodec.Encode(&statemachine.Step{}, nil),
		"outbox":   outboxCodec.Encode(&statemachine.Outbox{}, nil),
		"schedule": entryCodec.Encode(&Entry{}, nil),
		"webhook":  webhookCodec.Encode(&WebhookRow{}, nil),
	} {
		var numbers []string
		for i := range p {
			if p[i].Value.Kind() == tablestore.KindInt {
				numbers = append(numbers, p[i].Name)
			}
		}
		want := map[string][]string{
			"job": {"v", "rev", "current_step_index", "attempts_total"},
			"step": {
				"v", "step_index", "ack_timeout_ms", "lease_ms", "timeout_ms", "max_attempts", "lane", "attempt_no", "claim_lease_ms",
				"spent_dispatch", "spent_ack", "spent_execution", "spent_free",
			},
			"outbox":   {"v", "step_index", "attempt_no", "lane", "failures"},
			"schedule": {"v", "rev", "lane"},
			"webhook":  {"v", "index", "attempts", "seq", "last_status"},
		}
		if diff := cmp.Diff(want[name], numbers); diff != "" || len(p) != len(numbers) {
			t.Errorf("an empty row of a %s is %v (-want +got):\n%s", name, p, diff)
		}
	}
}

func TestColumns_NameAttemptsThatCannotBeRead(t *testing.T) {
	t.Parallel()
	row := stored(tablestore.Properties{{Name: "attempts", Value: tablestore.String("1:x")}})
	err := stepCodec.Decode(row, &statemachine.Step{})
	if want := `row ROW of job, column attempts: bad memory of attempts "1:x"`; err == nil || err.Error() != want {
		t.Errorf("answered %v, want %s", err, want)
	}
}

// A specimen has the fields of a running job of the README's example.
func specimen() (statemachine.Job, head, statemachine.Step) {
	now, ref := time.UnixMilli(1_760_000_000_000).UTC(), []byte(`{"uri":"s3://bucket/documents/2026/input.pdf"}`)
	delays := []time.Duration{30 * time.Second, 2 * time.Minute, 10 * time.Minute}
	job := statemachine.Job{
		ID: "0199c2f0-7b00-7000-8000-000000000001", TenantID: "tenant_a", TenantBucket: "tenant_a:202510",
		RequestType: "doc.ingest", SchemaVersion: "1", ProtocolID: "doc_ingest_v1", ProtocolVersion: "1",
		Mode: statemachine.ModeDefault, DocID: "doc_1", State: statemachine.JobInProgress, Rev: 7, Started: true,
		CurrentStepID: "ocr", AttemptsTotal: 1, IdempotencyHash: strings.Repeat("87f4dbde", 8), InputRef: ref, OutputRef: ref,
		CorrelationID: "b1f1e7a4-7a0f-4a44-a7a4-3c06c1a53a2a", CallbackURLs: []string{"https://a.example/hook"},
		CreatedAt: now, UpdatedAt: now,
	}
	step := statemachine.Step{
		ID: "ocr", Type: "OCR", Service: "ocr", Input: statemachine.InputJob, State: statemachine.StepInProgress, AttemptNo: 1,
		LeaseID: "b1f1e7a4-7a0f-4a44-a7a4-3c06c1a53a2a", LeaseExpiresAt: now, OutboxID: job.ID + ".0.1",
		InputRef: ref, Product: statemachine.Product{OutputRef: ref}, CreatedAt: now, UpdatedAt: now,
		Attempts: []statemachine.Attempt{{No: 1, LeaseDigest: "0123456789abcdef", Acked: true}},
		Policy: statemachine.Policy{
			AckTimeout: 30 * time.Second, Lease: 15 * time.Minute, Dispatch: delays, Ack: delays, Execution: delays, MaxAttempts: 10,
		},
		Routing: statemachine.Routing{
			ResolvedMode: statemachine.ModeDefault, Lane: 15, Topic: "global-bus-p15", RoutingKeyUsed: "tenant_a",
			DecisionSource: "default", DecisionReason: "the request asks for no mode",
		},
	}
	return job, head{
		Entry: entryRef{Kind: Timer, Due: now, Nonce: "8c3f"}, Slot: slotRef{Partition: "live:007", Row: "tenant_a:job"},
		Record: "hash:" + job.IdempotencyHash,
	}, step
}

func BenchmarkJobRow(b *testing.B) {
	job, h, _ := specimen()
	loaded := encodeJob(&job, &h, nil)
	b.ReportAllocs()
	for b.Loop() {
		row := tablestore.Row{Properties: encodeJob(&job, &h, loaded)}
		if err := decodeJob(&row, &job, &h); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkStepRow(b *testing.B) {
	_, _, step := specimen()
	loaded := stepCodec.Encode(&step, nil)
	b.ReportAllocs()
	for b.Loop() {
		row := tablestore.Row{Properties: stepCodec.Encode(&step, loaded)}
		if err := stepCodec.Decode(&row, &step); err != nil {
			b.Fatal(err)
		}
	}
}
