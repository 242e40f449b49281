package lucius_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	lucius "github.com/lucius-project/lucius/sdk/go"
)

const blockedLine = `{"line_id":"ab12","tenant_id":"tenant_a","order_key":"customer-42","state":"blocked","waiting":2,` +
	`"head":{"jobId":"j1","state":"FAILED_FINAL","error_code":"bad_scan"}}`

func TestLinesAreListed(t *testing.T) {
	t.Parallel()
	s := &scripted{t: t, answers: []answer{
		{status: 200, body: `{"lines":[` + blockedLine + `],"next_page_token":"p2"}`}, {status: 200, body: `{"lines":[]}`},
		{status: 200, body: blockedLine},
		{status: 200, body: `{"jobs":[{"jobId":"j1"}],"next_page_token":"2"}`}, {status: 200, body: `{"jobs":[{"jobId":"j2"}]}`},
	}}
	c := client(t, s)
	filter := lucius.LineFilter{TenantID: "tenant_a", OrderKey: "customer-42", State: lucius.LineStateBlocked, PageSize: 9}
	for line, err := range c.Lines(t.Context(), filter) {
		if err != nil || line.LineID != "ab12" || line.Head.JobID != "j1" || line.Waiting != 2 {
			t.Errorf("%+v, %v", line, err)
		}
	}
	line, err := c.Line(t.Context(), "a/b")
	if err != nil || line.State != lucius.LineStateBlocked || line.Head.ErrorCode != "bad_scan" {
		t.Errorf("%+v, %v", line, err)
	}
	var jobs []string
	for job, err := range c.LineJobs(t.Context(), "ab12") {
		if err != nil {
			t.Fatal(err)
		}
		jobs = append(jobs, job.JobID)
	}
	if diff := cmp.Diff([]string{"j1", "j2"}, jobs); diff != "" {
		t.Errorf("jobs (-want +got):\n%s", diff)
	}
	const list = "GET /v1/lines?limit=9&order_key=customer-42"
	want := []seen{
		{list + "&state=blocked&tenant_id=tenant_a", ""}, {list + "&page_token=p2&state=blocked&tenant_id=tenant_a", ""},
		{"GET /v1/lines/a%2Fb", ""}, {"GET /v1/lines/ab12/jobs?", ""}, {"GET /v1/lines/ab12/jobs?page_token=2", ""},
	}
	if diff := cmp.Diff(want, s.seen); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

func TestALineIsReleased(t *testing.T) {
	t.Parallel()
	s := &scripted{t: t, answers: []answer{
		{status: 200, body: `{"line_id":"ab12","state":"moving"}`}, {status: 409, body: `{"code":"not_blocking"}`},
	}}
	c := client(t, s)
	line, err := c.ReleaseLine(t.Context(), "ab12", "j1", "known")
	if err != nil || line.State != lucius.LineStateMoving {
		t.Errorf("%+v, %v", line, err)
	}
	var refused *lucius.Error
	if _, err := c.ReleaseLine(t.Context(), "ab12", "j2", ""); !errors.As(err, &refused) || refused.Code != lucius.ProblemCodeNotBlocking {
		t.Errorf("of another job: %v", err)
	}
	want := []seen{
		{"POST /v1/lines/ab12:release", `{"jobId":"j1","reason":"known"}`}, {"POST /v1/lines/ab12:release", `{"jobId":"j2"}`},
	}
	if diff := cmp.Diff(want, s.seen); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

func TestALineIsCancelled(t *testing.T) {
	t.Parallel()
	const many, few, none = `{"cancelled":1000,"more":true}`, `{"cancelled":7,"more":false}`, `{"cancelled":0,"more":true}`
	missing := answer{status: 404, body: `{"code":"line_not_found"}`}
	for name, test := range map[string]struct {
		answers   []answer
		cancelled int
		code      lucius.ProblemCode
	}{
		"in several requests":                  {[]answer{{status: 200, body: many}, {status: 200, body: few}}, 1007, ""},
		"until none is left that can be":       {[]answer{{status: 200, body: many}, {status: 200, body: none}}, 1000, ""},
		"until the line has no job":            {[]answer{{status: 200, body: many}, missing}, 1000, ""},
		"and refused, if it has no job at all": {[]answer{missing}, 0, lucius.ProblemCodeLineNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &scripted{t: t, answers: test.answers}
			cancelled, err := client(t, s).CancelLine(t.Context(), "ab12", "why")
			var refused *lucius.Error
			if errors.As(err, &refused) != (test.code != "") || refused != nil && refused.Code != test.code || cancelled != test.cancelled {
				t.Errorf("cancelled %d, %v", cancelled, err)
			}
			if len(s.seen) != len(test.answers) || s.seen[0] != (seen{"POST /v1/lines/ab12:cancel", `{"reason":"why"}`}) {
				t.Errorf("requests: %v", s.seen)
			}
		})
	}
}
