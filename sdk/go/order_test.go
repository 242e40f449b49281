package lucius_test

import (
	"strings"
	"testing"
	"testing/synctest"

	lucius "github.com/lucius-project/lucius/sdk/go"
)

// A command that was left for one before it in its line is submitted again after that one.
func TestABatchRepeatsTheRestOfALine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const left = `{"status":409,"error":{"status":409,"code":"predecessor_refused"}}`
		s := &scripted{t: t, answers: []answer{
			{status: 200, body: `{"results":[{"status":503,"error":{"status":503,"code":"store_unavailable"}},{"status":202,"jobId":"j2"},` + left + `]}`},
			{status: 200, body: `{"results":[{"status":202,"jobId":"j1"},{"status":202,"jobId":"j3"}]}`},
		}}
		results, err := client(t, s).SubmitBatch(t.Context(), []lucius.Command{{TenantID: "a", OrderKey: "k"}, {TenantID: "b"}, {TenantID: "c", OrderKey: "k"}})
		if err != nil || len(results) != 3 || results[0].JobID != "j1" || results[1].JobID != "j2" || results[2].JobID != "j3" {
			t.Errorf("%+v, %v", results, err)
		}
		again := s.seen[1].Body
		if first, second := strings.Index(again, `"tenant_id":"a"`), strings.Index(again, `"tenant_id":"c"`); first < 0 || second < first {
			t.Errorf("submitted again: %s", again)
		}
	})
}

func TestACommandHasAnOrder(t *testing.T) {
	t.Parallel()
	s := &scripted{t: t, answers: []answer{
		{status: 202, body: accepted}, {status: 200, body: `{"state":"QUEUED","order_key":"customer-42","order_mode":"newest","line_id":"ab12"}`},
	}}
	c := client(t, s)
	if _, err := c.Submit(t.Context(), lucius.Command{OrderKey: "customer-42", OrderMode: lucius.OrderModeNewest}); err != nil {
		t.Fatal(err)
	}
	if sent := s.seen[0].Body; !strings.Contains(sent, `"order_key":"customer-42"`) || !strings.Contains(sent, `"order_mode":"newest"`) {
		t.Errorf("submitted: %s", sent)
	}
	job, err := c.Get(t.Context(), "j1")
	if err != nil || job.OrderKey != "customer-42" || job.OrderMode != lucius.OrderModeNewest || job.LineID != "ab12" {
		t.Errorf("%+v, %v", job, err)
	}
}
