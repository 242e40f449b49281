package servicebus

import (
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"

	"github.com/lucius-project/lucius/pkg/ledger"
)

// contentType is that of every directive.
const contentType = "application/json"

// messageOf is the directive as it goes onto the bus. The message id is that of
// the attempt, so that duplicate detection drops a copy; the SDK would make a new
// one for each send. The properties are for the filters of subscriptions.
//
// Source: Orchestrator flow canvas, Service Bus; Option B spec, 10.1.
func messageOf(m *ledger.Message, timeToLive time.Duration) *azservicebus.Message {
	properties := map[string]any{
		"tenant_id": m.TenantID, "service": m.Service, "step_type": m.StepType,
		"jobId": m.JobID, "attempt_no": int64(m.AttemptNo),
	}
	if m.Traceparent != "" {
		properties["traceparent"] = m.Traceparent
	}
	message := &azservicebus.Message{
		MessageID: new(m.MessageID()), Subject: new(m.StepType), ContentType: new(contentType),
		TimeToLive: &timeToLive, ApplicationProperties: properties, Body: m.Directive,
	}
	if m.CorrelationID != "" {
		message.CorrelationID = new(m.CorrelationID)
	}
	return message
}
