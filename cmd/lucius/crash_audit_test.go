package main

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/waittest"
)

// auditClean checks a data directory that no server has open, after every job in it has
// succeeded: there is one job for each accepted command and no other, its history has no gap,
// and each of its steps was applied once.
func auditClean(t *testing.T, dir string, accepted map[string]string) {
	t.Helper()
	if len(accepted) == 0 {
		t.Error("no command was accepted")
	}
	s := newSite(t)
	s.data = dir
	server := s.start()
	wanted := make([]string, 0, len(accepted))
	for _, id := range accepted {
		wanted = append(wanted, id)
		auditJob(t, s.client, id)
	}
	found := listJobs(t, s.client, api.ListJobsParams{})
	slices.Sort(wanted)
	slices.Sort(found)
	if diff := cmp.Diff(wanted, found); diff != "" {
		t.Errorf("accepted and stored jobs differ (-accepted +stored):\n%s", diff)
	}
	server.terminate()
	auditRows(t, s)
}

// auditRows runs lucius audit until it finds nothing wrong and nothing left to
// do. If a crash interrupted the work after a job's end, a schedule entry for it is due
// within seconds: a server that runs that long again must do it.
func auditRows(t *testing.T, s *site) {
	t.Helper()
	binary, err := buildPlain()
	if err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "lucius audit finds no open work", func() bool {
		found, err := exec.Command(binary, "audit", "--quiescent", "--data-dir", s.data).CombinedOutput()
		if err == nil {
			return true
		}
		if !strings.Contains(string(found), " 0 violations") {
			t.Fatalf("lucius audit: %v\n%s", err, found)
		}
		server := s.start()
		time.Sleep(waittest.Scale(time.Second))
		server.terminate()
		return false
	})
}

// auditJob reads a job's history.
func auditJob(t *testing.T, client *api.ClientWithResponses, id string) {
	t.Helper()
	limit := api.Limit(1000)
	page, err := client.ListJobEventsWithResponse(t.Context(), id, &api.ListJobEventsParams{Limit: &limit})
	if err != nil || page.JSON200 == nil {
		t.Fatalf("history of %s: %v", id, err)
	}
	ended, rev := map[string]int{}, int64(0)
	for _, event := range page.JSON200.Events {
		if event.Rev != rev && event.Rev != rev+1 {
			t.Errorf("history of %s jumps from rev %d to %d", id, rev, event.Rev)
		}
		rev = event.Rev
		if event.Type == "step.succeeded" || event.Type == "job.succeeded" {
			ended[string(event.Type)+" "+event.ObjectID]++
		}
	}
	if len(ended) != 4 {
		t.Errorf("job %s ended %v, want three steps and the job", id, ended)
	}
	for what, times := range ended {
		if times != 1 {
			t.Errorf("job %s: %s %d times", id, what, times)
		}
	}
}

// listJobs returns the ids of all jobs that match the filter.
func listJobs(t *testing.T, client *api.ClientWithResponses, filter api.ListJobsParams) (ids []string) {
	t.Helper()
	for {
		page, err := client.ListJobsWithResponse(t.Context(), &filter)
		if err != nil || page.JSON200 == nil {
			t.Fatalf("list the jobs: %v, %s", err, bodyOf(page))
		}
		for _, job := range page.JSON200.Jobs {
			ids = append(ids, job.JobID)
		}
		if page.JSON200.NextPageToken == "" {
			return ids
		}
		filter.PageToken = &page.JSON200.NextPageToken
	}
}
