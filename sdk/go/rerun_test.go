package lucius_test

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	lucius "github.com/lucius-project/lucius/sdk/go"
)

func TestRerunSendsItsCorrections(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		request lucius.RerunRequest
		body    string
	}{
		{"none", lucius.RerunRequest{}, `{}`},
		{"of the payload", lucius.RerunRequest{Payload: struct{}{}, From: lucius.RerunFromStart}, `{"from":"start","payload":{}}`},
		{
			"that remove a member", lucius.RerunRequest{PayloadPatch: map[string]any{"model": "v3", "pages": nil}},
			`{"payload_patch":{"model":"v3","pages":null}}`,
		},
		{
			"of a type", lucius.RerunRequest{PayloadPatch: struct {
				Words int `json:"words"`
			}{500}}, `{"payload_patch":{"words":500}}`,
		},
		{
			"all others", lucius.RerunRequest{
				FromStep: "embed", InputRef: lucius.URI("s3://b/in"), OutputRef: lucius.URI("s3://b/out"), WorkspaceRef: lucius.URI("s3://b/w"),
				Resolve:  []lucius.ResolvedStep{{StepID: "ocr", OutputRef: lucius.URI("s3://b/ocr")}},
				Protocol: lucius.RerunProtocolCurrent, Newest: true, Callbacks: lucius.RerunCallbacksNone,
				Tags: lucius.Tags{"run": "november"}, Reason: "the scan was bad",
			},
			`{"callbacks":"none","from_step":"embed","input_ref":{"uri":"s3://b/in"},"newest":true,"output_ref":{"uri":"s3://b/out"},` +
				`"protocol":"current","reason":"the scan was bad","resolve":[{"output_ref":{"uri":"s3://b/ocr"},"step_id":"ocr"}],` +
				`"tags":{"run":"november"},"workspace_ref":{"uri":"s3://b/w"}}`,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := &scripted{t: t, answers: []answer{{status: 202, body: accepted}}}
			receipt, err := client(t, s).Rerun(t.Context(), "j/1", test.request)
			if err != nil || receipt.JobID != "j1" {
				t.Errorf("%+v, %v", receipt, err)
			}
			if diff := cmp.Diff([]seen{{"POST /v1/jobs/j%2F1:rerun", test.body}}, s.seen); diff != "" {
				t.Errorf("requests (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAPlannedRerunIsRead(t *testing.T) {
	t.Parallel()
	s := &scripted{t: t, answers: []answer{
		{status: 200, body: `{"dry_run":true,"jobId":"j/1","live":false,"existing_job_id":"j2","protocol_id":"ingest","protocol_version":"3",` +
			`"steps":[{"step_id":"ocr","step_type":"OCR","service":"scans","outcome":"carried"},{"step_id":"embed","step_type":"EMBED","service":"ai"}],` +
			`"changes":[{"pointer":"/payload/model","before":null,"after":"v3"},{"pointer":"/payload/pages","before":[1,2]}]}`},
		{status: 200, body: `{"dry_run":true,"jobId":"j3","live":true,"steps":[],"changes":[]}`},
		{status: 409, body: `{"status":409,"code":"nothing_to_run"}`},
	}}
	c, ctx := client(t, s), t.Context()
	plan, err := c.PlanRerun(ctx, "j/1", lucius.RerunRequest{PayloadPatch: map[string]any{"model": "v3", "pages": nil}, FromStep: "embed"})
	if err != nil {
		t.Fatal(err)
	}
	want := &lucius.RerunPreview{
		DryRun: true, JobID: "j/1", ExistingJobID: "j2", ProtocolID: "ingest", ProtocolVersion: "3",
		Steps: []lucius.PlannedStep{
			{StepID: "ocr", StepType: "OCR", Service: "scans", Outcome: lucius.StepOutcomeCarried},
			{StepID: "embed", StepType: "EMBED", Service: "ai"},
		},
		Changes: []lucius.CommandChange{
			{Pointer: "/payload/model", Before: json.RawMessage(`null`), After: json.RawMessage(`"v3"`)},
			{Pointer: "/payload/pages", Before: json.RawMessage(`[1,2]`)},
		},
	}
	if diff := cmp.Diff(want, plan); diff != "" {
		t.Errorf("plan (-want +got):\n%s", diff)
	}
	if live, err := c.PlanRerun(ctx, "j1", lucius.RerunRequest{Newest: true}); err != nil || !live.Live || live.JobID != "j3" {
		t.Errorf("the plan for a live job is %+v, %v", live, err)
	}
	if _, err := c.PlanRerun(ctx, "j1", lucius.RerunRequest{}); !lucius.HasCode(err, lucius.ProblemCodeNothingToRun) ||
		err.Error() != "plan the rerun of job j1: the server answered 409 nothing_to_run" {
		t.Errorf("error %v", err)
	}
	asked := []seen{
		{"POST /v1/jobs/j%2F1:rerun", `{"from_step":"embed","payload_patch":{"model":"v3","pages":null},"dry_run":true}`},
		{"POST /v1/jobs/j1:rerun", `{"newest":true,"dry_run":true}`}, {"POST /v1/jobs/j1:rerun", `{"dry_run":true}`},
	}
	if diff := cmp.Diff(asked, s.seen); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

func TestARefusedRerunNamesEachFault(t *testing.T) {
	t.Parallel()
	s := &scripted{t: t, answers: []answer{{status: 422, body: `{"status":422,"code":"payload_invalid",` +
		`"errors":[{"pointer":"/payload/words","message":"is required"},{"pointer":"/payload/wrods","message":"is not allowed here"}]}`}}}
	_, err := client(t, s).Rerun(t.Context(), "j1", lucius.RerunRequest{PayloadPatch: map[string]any{"wrods": 3}})
	refused, ok := errors.AsType[*lucius.Error](err)
	if !ok || !lucius.HasCode(err, lucius.ProblemCodePayloadInvalid) {
		t.Fatal(err)
	}
	want := []lucius.Violation{
		{Pointer: "/payload/words", Message: "is required"}, {Pointer: "/payload/wrods", Message: "is not allowed here"},
	}
	if diff := cmp.Diff(want, refused.Errors); diff != "" {
		t.Errorf("violations (-want +got):\n%s", diff)
	}
}

func TestLineage(t *testing.T) {
	t.Parallel()
	s := &scripted{t: t, answers: []answer{
		{status: 200, body: `{"truncated":true,"jobs":[{"jobId":"j0","purged":true},{"jobId":"j1","purged":false,"rerun_of":"j0",` +
			`"first_step":"embed","rerun_edits":["/payload/model"],"state":"SUCCEEDED","created_at":"2026-01-27T10:02:00.000Z"}]}`},
		{status: 404, body: `{"status":404,"code":"job_not_found"}`},
	}}
	c := client(t, s)
	lineage, err := c.Lineage(t.Context(), "j/1")
	if err != nil {
		t.Fatal(err)
	}
	want := &lucius.Lineage{Truncated: true, Jobs: []lucius.LineageJob{{JobID: "j0", Purged: true}, {
		JobID: "j1", RerunOf: "j0", FirstStep: "embed", RerunEdits: []string{"/payload/model"}, State: lucius.JobStateSucceeded,
		CreatedAt: time.Date(2026, 1, 27, 10, 2, 0, 0, time.UTC),
	}}}
	if diff := cmp.Diff(want, lineage); diff != "" {
		t.Errorf("lineage (-want +got):\n%s", diff)
	}
	if _, err := c.Lineage(t.Context(), "gone"); !lucius.HasCode(err, lucius.ProblemCodeJobNotFound) {
		t.Errorf("error %v", err)
	}
	if s.seen[0].Request != "GET /v1/jobs/j%2F1/lineage" {
		t.Errorf("requests %+v", s.seen)
	}
}
