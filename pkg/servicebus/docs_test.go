package servicebus_test

import (
	"bytes"
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/servicebus"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// documented returns docs/use/servicebus.md, and its examples in JSON, in order.
func documented(t *testing.T) (text string, examples []string) {
	t.Helper()
	page, err := os.ReadFile("../../docs/use/servicebus.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, found := range regexp.MustCompile("(?s)```json\n(.*?)\n```").FindAllStringSubmatch(string(page), -1) {
		examples = append(examples, found[1])
	}
	if len(examples) != 5 {
		t.Fatalf("the page has %d examples, want a directive and four replies", len(examples))
	}
	return string(page), examples
}

// The directive that the page shows is what the encoder makes.
func TestDocs_ShowTheDirectiveAsItIsSent(t *testing.T) {
	t.Parallel()
	page, examples := documented(t)
	job := &statemachine.Job{
		ID: "0197f0c2-6f3a-7c41-9d0e-2b1f6a5c8e77", TenantID: "tenant_a", ProtocolID: "doc_ingest_v1", CorrelationID: "corr-123",
	}
	step := &statemachine.Step{
		ID: "ocr", Type: "OCR", Service: "ocr", Policy: statemachine.Policy{AckTimeout: 30 * time.Second},
		InputRef: []byte(`{"uri":"s3://bucket/input.pdf"}`),
		Product:  statemachine.Product{OutputRef: []byte(`{"uri":"s3://bucket/output.json"}`)},
	}
	row := &statemachine.Outbox{
		ID: "outbox", AttemptNo: 1, LeaseID: "9a7c1f0e5d3b4a29", Bus: statemachine.BusServiceBus,
		UpdatedAt: time.Date(2026, 1, 27, 10, 2, 0, 0, time.UTC),
		Routing:   statemachine.Routing{ResolvedMode: "DEFAULT", Lane: 15, RoutingKeyUsed: "tenant_a"},
	}
	directive := statemachine.NewDirective(job, step, row, []byte(`{"language":"en"}`), job.Traceparent)
	body, err := directive.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	var indented bytes.Buffer
	if err := json.Indent(&indented, body, "", "  "); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(indented.String(), examples[0]); diff != "" {
		t.Errorf("-sent +documented\n%s", diff)
	}
	var fields map[string]any
	if err := json.Unmarshal(body, &fields); err != nil {
		t.Fatal(err)
	}
	message := servicebus.MessageOf(&ledger.Message{AttemptNo: 1, Traceparent: "00-1-1-01"}, time.Minute)
	for name := range message.ApplicationProperties {
		fields[name] = nil
	}
	for name := range fields {
		if !strings.Contains(page, "`"+name+"`") {
			t.Errorf("the page does not explain %s", name)
		}
	}
}

// The replies that the page shows are accepted unchanged, and have no unknown field.
func TestDocs_ShowRepliesThatAreTaken(t *testing.T) {
	t.Parallel()
	_, examples := documented(t)
	for i, want := range []string{"ACK", "HEARTBEAT", "RESULT", "RESULT"} {
		kind, unknown, err := servicebus.ParseReply([]byte(examples[i+1]))
		if err != nil || unknown || string(kind) != want {
			t.Errorf("%s is taken for %s (unknown fields: %t): %v\n%s", want, kind, unknown, err, examples[i+1])
		}
	}
}

// The worker in C# is not compiled here, but it uses only fields that the page documents.
func TestDocs_HaveTheFieldsOfTheWorkerInCSharp(t *testing.T) {
	t.Parallel()
	page, _ := documented(t)
	source, err := os.ReadFile("../../examples/dotnet/Worker.cs")
	if err != nil {
		t.Fatal(err)
	}
	fields := regexp.MustCompile(`(?:JsonPropertyName\(|\[)"(\w+)"`).FindAllStringSubmatch(string(source), -1)
	if len(fields) < 20 {
		t.Fatalf("the worker has %d fields", len(fields))
	}
	for _, field := range fields {
		if !strings.Contains(page, `"`+field[1]+`"`) && !strings.Contains(page, "`"+field[1]+"`") {
			t.Errorf("docs/use/servicebus.md has no field %s", field[1])
		}
	}
}
