package console

import (
	"net/url"
	"testing"
	"time"

	"github.com/lucius-project/lucius/api"
)

func TestPrioritize_SendsTheClassOfItsForm(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, map[string]any{
		"POST /v1/jobs/j1:prioritize": api.Job{JobID: "j1"}, "POST /v1/jobs/j1:rerun": api.CommandAccepted{JobID: "j2"},
	})
	has(t, b.get(t, "/ui/do/job-prioritize?job=j1&priority=normal"), "<option selected>normal</option>", "lucius jobs prioritize j1 normal<")
	if to := b.submits(t, "job-prioritize", url.Values{"job": {"j1"}, "priority": {"bulk"}, "reason": {"why"}}); to != "/ui/jobs/j1" {
		t.Errorf("it leads to %s", to)
	}
	b.asks(t, `POST /v1/jobs/j1:prioritize {"priority":"bulk","reason":"why"}`)
	has(t, b.get(t, "/ui/do/job-rerun?job=j1&priority=bulk"), "<option selected>bulk</option>", "--priority bulk")
	b.submits(t, "job-rerun", url.Values{"job": {"j1"}, "priority": {"bulk"}})
	b.asks(t, `POST /v1/jobs/j1:rerun {"from":"failed","newest":true,"priority":"bulk"}`)
}

func TestJob_OffersTheOtherClass(t *testing.T) {
	t.Parallel()
	page := newBrowser(t, answersOf(runningJob())).get(t, "/ui/jobs/j1")
	has(t, page, "Make it bulk…")
	hasNot(t, page, "<dt>priority</dt>")
	bulk := runningJob()
	bulk.Priority = api.PriorityBulk
	has(t, newBrowser(t, answersOf(bulk)).get(t, "/ui/jobs/j1"), "Make it normal…", "<dt>priority</dt><dd>bulk</dd>")
	bulk.State, bulk.CompletedAt = api.JobStateCancelled, api.NewTime(time.Now())
	hasNot(t, newBrowser(t, answersOf(bulk)).get(t, "/ui/jobs/j1"), "Make it")
}
