package httpapi_test

import (
	"context"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/httpapi"
)

// The specimens of the operators' use cases.
var (
	outboxRow = api.OutboxRow{
		OutboxID: "o1", JobID: "j1", StepID: "ocr", TenantID: "t", State: api.OutboxStatePending, AttemptNo: 1,
		Topic: "global-bus-p15", Lane: 15, NextAttemptAt: at, CreatedAt: at, UpdatedAt: at,
	}
	stuck   = api.StuckJob{JobID: "j1", State: api.JobStateInProgress, Reason: "no entry", FoundAt: at}
	failure = api.FailureGroup{
		StepType: "OCR", ErrorCode: "ack_timeout", Count: 3, FirstAt: at, LastAt: at, SampleJobIds: []string{"j1"},
	}
	bulkRetry = api.Retry{
		RetryID: "b1", State: api.RetryStateRunning, From: api.RerunFromFailed, Matched: 2, RatePerSecond: 20,
		CreatedAt: at, UpdatedAt: at,
	}
	bulkItem = api.RetryItem{JobID: "j1", Outcome: api.RetryItemOutcomeWaiting}
	paused   = api.Pause{PauseID: "tenant:t", State: api.PauseStatePaused, TenantID: "t", Reason: "why", Actor: "operator", CreatedAt: at}
	webhook  = api.Webhook{
		WebhookID: "j1.0", JobID: "j1", TenantID: "t", URL: "https://a.example/hook", Event: "job.succeeded",
		State: api.WebhookStatePending, CreatedAt: at, UpdatedAt: at,
	}
	proto = api.Protocol{
		ProtocolID: "p", RequestTypes: []string{"doc.ingest"}, File: "p.yaml",
		Digest: "87f4", Steps: []api.ProtocolStep{{StepID: "ocr", StepType: "OCR", Service: "ocr"}},
	}
)

func (j jobs) Rerun(ctx context.Context, id string, request api.RerunRequest) (api.CommandAccepted, error) {
	return accepted, j.asked(ctx, call{Operation: "Rerun", ID: id, Request: request}, wait{})
}

func (j jobs) List(ctx context.Context, params api.ListJobsParams, page httpapi.Page) (api.JobPage, error) {
	params.Limit, params.PageToken = nil, nil
	err := j.asked(ctx, call{Operation: "List", Request: params, Page: page}, wait{})
	return api.JobPage{Jobs: list(j.useCases, job), NextPageToken: "next"}, err
}

// Follow tells one entry behind each that it is asked about, of which the third
// is the last.
func (j jobs) Follow(ctx context.Context, id, after string) ([]api.Event, bool, error) {
	err := j.asked(ctx, call{Operation: "Follow", ID: id, Request: after}, wait{})
	next := event
	next.EventID = map[string]string{"": "1-0", "1-0": "2-0", "2-0": "3-0"}[after]
	if j.empty || next.EventID == "" {
		return nil, !j.empty, err
	}
	return []api.Event{next}, next.EventID == "3-0", err
}

func (a admin) Outbox(ctx context.Context, params api.ListOutboxParams, page httpapi.Page) (api.OutboxPage, error) {
	params.Limit, params.PageToken = nil, nil
	err := a.asked(ctx, call{Operation: "Outbox", Request: params, Page: page}, wait{})
	return api.OutboxPage{Outbox: list(a.useCases, outboxRow)}, err
}

func (a admin) Stuck(ctx context.Context) (api.StuckList, error) {
	return api.StuckList{Stuck: list(a.useCases, stuck), Checked: 7}, a.asked(ctx, call{Operation: "Stuck"}, wait{})
}

type failures struct{ *useCases }

func (f failures) Groups(ctx context.Context, params api.ListFailuresParams) (api.FailureList, error) {
	err := f.asked(ctx, call{Operation: "Groups", Request: params}, wait{})
	return api.FailureList{Groups: list(f.useCases, failure)}, err
}

func (f failures) CreateRetry(ctx context.Context, key string, request api.RetryRequest) (api.Retry, error) {
	return bulkRetry, f.asked(ctx, call{Operation: "CreateRetry", ID: key, Request: request}, wait{})
}

func (f failures) Retry(ctx context.Context, id string, page httpapi.Page) (api.Retry, error) {
	found := bulkRetry
	found.Items = list(f.useCases, bulkItem)
	return found, f.asked(ctx, call{Operation: "Retry", ID: id, Page: page}, wait{})
}

func (f failures) CancelRetry(ctx context.Context, id string, request api.ControlRequest) (api.Retry, error) {
	return bulkRetry, f.asked(ctx, call{Operation: "CancelRetry", ID: id, Request: request}, wait{})
}

type pauses struct{ *useCases }

func (p pauses) List(ctx context.Context) (api.PauseList, error) {
	return api.PauseList{Pauses: list(p.useCases, paused)}, p.asked(ctx, call{Operation: "Pauses"}, wait{})
}

func (p pauses) Create(ctx context.Context, request api.PauseRequest) (api.Pause, error) {
	return paused, p.asked(ctx, call{Operation: "CreatePause", Request: request}, wait{})
}

func (p pauses) Resume(ctx context.Context, id string, request api.ResumeRequest) (api.Pause, error) {
	return paused, p.asked(ctx, call{Operation: "ResumePause", ID: id, Request: request}, wait{})
}

type webhooks struct{ *useCases }

func (h webhooks) OfJob(ctx context.Context, id string) (api.WebhookPage, error) {
	return api.WebhookPage{Webhooks: list(h.useCases, webhook)}, h.asked(ctx, call{Operation: "JobWebhooks", ID: id}, wait{})
}

func (h webhooks) Undelivered(ctx context.Context, params api.ListWebhooksParams, page httpapi.Page,
) (api.WebhookPage, error) {
	params.Limit, params.PageToken = nil, nil
	err := h.asked(ctx, call{Operation: "Undelivered", Request: params, Page: page}, wait{})
	return api.WebhookPage{Webhooks: list(h.useCases, webhook)}, err
}

func (h webhooks) Replay(ctx context.Context, id string, request api.ControlRequest) (api.Webhook, error) {
	return webhook, h.asked(ctx, call{Operation: "Replay", ID: id, Request: request}, wait{})
}

type protocols struct{ *useCases }

func (p protocols) Protocols(ctx context.Context) (api.ProtocolList, error) {
	err := p.asked(ctx, call{Operation: "Protocols"}, wait{})
	return api.ProtocolList{Protocols: list(p.useCases, proto), LoadedAt: at}, err
}
