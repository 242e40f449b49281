package main

import (
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lucius-project/lucius/api"
)

// The metrics show the course of jobs: starts, retries, timeouts and ends.
func TestServe_CountsTheCourseOfJobs(t *testing.T) {
	t.Parallel()
	s := serveOn(t, filepath.Join(t.TempDir(), "data"), longTimeouts...)
	jobID := s.submit(t)
	item := s.claim(t, "c0", true)
	failed, err := s.client.FailWorkWithResponse(t.Context(), item.WorkID, api.WorkFailure{
		Owner: "w", ExpectedRev: item.Rev, RequestID: "f", Retryable: true, Error: api.ReportedError{Code: "any code", Message: "m"},
	})
	if err != nil || failed.JSON200 == nil {
		t.Fatalf("fail: %v, %s", err, bodyOf(failed))
	}
	finish(t, s, jobID)
	text := scrape(t, s)
	for _, want := range []string{
		`lucius_transitions_total{event="job.accepted"} 1`, `lucius_transitions_total{event="job.succeeded"} 1`,
		`lucius_transitions_total{event="step.succeeded"} 3`, `lucius_step_failures_total{cause="reported",retried="yes",service="extract"} 1`,
		`lucius_step_failures_total{cause="lease_expired",retried="no",service="index"} 0`,
		`lucius_step_duration_seconds_count{outcome="failed_retry",service="extract",step_type="EXTRACT"} 1`,
		`lucius_step_duration_seconds_count{outcome="succeeded",service="extract",step_type="EXTRACT"} 1`,
		`lucius_queue_wait_seconds_count{service="extract",step_type="EXTRACT"} 2`,
		`lucius_job_duration_seconds_count{outcome="succeeded",request_type="doc.ingest"} 1`,
		`lucius_jobs{state="in_progress"} 0`, `lucius_work_items{service="embed",state="running",step_type="EMBED"} 0`,
		`lucius_work_oldest_seconds{service="index",step_type="INDEX"} 0`, `lucius_relay_rows_total{outcome="rejected"} 0`,
		`lucius_publish_duration_seconds_count{answer="outage"} 0`, `lucius_callbacks_rejected_total{cause="stale_attempt",type="ACK"} 0`,
		`lucius_store_requests_total{operation="commit",outcome="unreachable"} 0`,
		"lucius_store_reserve_bytes 2.68435456e+08", "lucius_store_write_stalls_total 0",
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("the metrics have no %s", want)
		}
	}
	for _, name := range []string{
		"lucius_store_bytes", "lucius_store_free_bytes", "lucius_store_commits_total", "lucius_store_reads_total", "lucius_store_rows_read_total",
		"lucius_store_log_written_bytes_total", `lucius_store_request_seconds_count{operation="scan"}`,
		`lucius_store_requests_total{operation="commit",outcome="succeeded"}`,
	} {
		var size float64
		_, rest, _ := strings.Cut(text, "\n"+name+" ")
		if _, err := fmt.Sscan(rest, &size); err != nil || size <= 0 {
			t.Errorf("%s is %g: %v", name, size, err)
		}
	}
}

// scrape reads the metrics.
func scrape(t *testing.T, s *testServer) string {
	t.Helper()
	return scrapeURL(t, s.url)
}

// scrapeURL reads the metrics of the server with that URL.
func scrapeURL(t *testing.T, base string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }() // The body has been read.
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
