package servicebus_test

import (
	"context"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/servicebus"
)

// A directive on the bus is a contract with platform services, their duplicate
// detection and their filters.
func TestPublisher_DirectiveAsAMessage(t *testing.T) {
	t.Parallel()
	full := ledger.Message{
		OutboxID: "0197f0c2", JobID: "job_123", TenantID: "tenant_a", ProtocolID: "doc_ingest_v1", StepID: "step_01",
		StepIndex: 1, StepType: "OCR", Service: "ocr", AttemptNo: 3, LeaseID: "9a7c", Lane: 4, Topic: "global-bus-p4",
		CorrelationID: "corr-123", Traceparent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00",
		Directive: []byte(`{"type":"DIRECTIVE", "as":"it is"}`),
	}
	bare := full
	bare.CorrelationID, bare.Traceparent = "", ""
	properties := func() map[string]any {
		return map[string]any{
			"tenant_id": "tenant_a", "service": "ocr", "step_type": "OCR", "jobId": "job_123", "attempt_no": int64(3),
		}
	}
	traced := properties()
	traced["traceparent"] = full.Traceparent
	for _, test := range []struct {
		name    string
		message ledger.Message
		want    *azservicebus.Message
	}{
		{"with all it may have", full, &azservicebus.Message{
			MessageID: new("0197f0c2/3"), Subject: new("OCR"), ContentType: new("application/json"), CorrelationID: new("corr-123"),
			TimeToLive: new(75 * time.Second), ApplicationProperties: traced, Body: full.Directive,
		}},
		{"with what it must have", bare, &azservicebus.Message{
			MessageID: new("0197f0c2/3"), Subject: new("OCR"), ContentType: new("application/json"),
			TimeToLive: new(75 * time.Second), ApplicationProperties: properties(), Body: full.Directive,
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var sent []*azservicebus.Message
			p := publisher(t, func(_ context.Context, _ string, messages []*azservicebus.Message) (int, error) {
				sent = append(sent, messages...)
				return len(messages), nil
			}, func(cfg *servicebus.PublisherConfig) {
				cfg.AckTimeout = func(m *ledger.Message) time.Duration { return time.Duration(m.AttemptNo) * 20 * time.Second }
				cfg.Margin = 15 * time.Second
			})
			if got := p.Publish(t.Context(), []ledger.Message{test.message}); got[0] != nil {
				t.Fatal(got)
			}
			if diff := cmp.Diff([]*azservicebus.Message{test.want}, sent); diff != "" {
				t.Errorf("on the bus (-want +got):\n%s", diff)
			}
		})
	}
}

// The topic drops copies of the same attempt as duplicates, and nothing else.
func TestPublisher_TheMessageIDIsThatOfTheAttempt(t *testing.T) {
	t.Parallel()
	var ids []string
	p := publisher(t, func(_ context.Context, _ string, messages []*azservicebus.Message) (int, error) {
		ids = append(ids, *messages[0].MessageID)
		return 1, nil
	})
	first := directive("topic", "o")
	second := first
	second.AttemptNo++
	p.Publish(t.Context(), []ledger.Message{first, second})
	p.Publish(t.Context(), []ledger.Message{first})
	if diff := cmp.Diff([]string{"o/2", "o/3", "o/2"}, ids); diff != "" {
		t.Errorf("message ids (-want +got):\n%s", diff)
	}
}
