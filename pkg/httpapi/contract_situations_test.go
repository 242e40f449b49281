package httpapi_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/announce"
	realwebhooks "github.com/lucius-project/lucius/pkg/webhooks"
)

// situation brings a server into the state in which a request gets its answer,
// and returns the request. Who sends it, and as what, is the caller's to fill in.
type situation func(t *testing.T, r *rig) question

// sending is the situation in which nothing needs to be there.
func sending(path, body string) situation {
	return func(*testing.T, *rig) question { return question{target: "POST " + path, body: body} }
}

// reading is sending for what is only read.
func reading(path string) situation {
	return func(*testing.T, *rig) question { return question{target: "GET " + path} }
}

// submitted submits another command and returns its job's id.
func (r *rig) submitted(t *testing.T) string {
	t.Helper()
	r.commands++
	body := strings.Replace(rigCommand, "{", fmt.Sprintf(`{"idempotency_key":"k%d",`, r.commands), 1)
	return decoded[api.CommandAccepted](t, r.given(t, "POST /v1/commands", body)).JobID
}

// claimed has a worker claim a job's step, and start it if that is asked for.
func (r *rig) claimed(t *testing.T, start bool) api.WorkItem {
	t.Helper()
	r.dispatch(t)
	r.submitted(t)
	body := fmt.Sprintf(`{"owner":"o","request_id":"r1","wait_seconds":30,"start":%t}`, start)
	return decoded[api.ClaimedWork](t, r.given(t, "POST /v1/work:claim", body)).Items[0]
}

// failed is a job that ended as a failure.
func (r *rig) failed(t *testing.T) string {
	t.Helper()
	item := r.claimed(t, true)
	r.given(t, "POST /v1/work/"+item.WorkID+":fail", verbBody(item.Rev, ""))
	return decoded[api.Directive](t, answer{Body: string(item.Directive)}).JobID
}

// decoded is the body of an answer.
func decoded[T any](t *testing.T, got answer) T {
	t.Helper()
	var value T
	must(t, json.Unmarshal([]byte(got.Body), &value))
	return value
}

// onJob is the situation of a request about a job that was just submitted.
func onJob(method, rest string) situation {
	return func(t *testing.T, r *rig) question {
		t.Helper()
		return question{target: method + " /v1/jobs/" + r.submitted(t) + rest}
	}
}

// onJobAfter is onJob for a job that was asked for something before.
func onJobAfter(first, rest string) situation {
	return func(t *testing.T, r *rig) question {
		t.Helper()
		id := r.submitted(t)
		r.given(t, "POST /v1/jobs/"+id+first, "")
		return question{target: "POST /v1/jobs/" + id + rest}
	}
}

// onFailed is onJob for a job that failed.
func onFailed(rest string) situation {
	return func(t *testing.T, r *rig) question {
		t.Helper()
		return question{target: "POST /v1/jobs/" + r.failed(t) + rest}
	}
}

// onWork is the situation of a request about an item that a worker has claimed.
func onWork(target string) situation {
	return func(t *testing.T, r *rig) question {
		t.Helper()
		return question{target: fmt.Sprintf(target, r.claimed(t, false).WorkID)}
	}
}

// byWorker is onWork for a verb of the worker's; rev is added to the item's, so
// that it may be a wrong one.
func byWorker(name string, started bool, rev int64, more string) situation {
	return func(t *testing.T, r *rig) question {
		t.Helper()
		item := r.claimed(t, started)
		return question{target: "POST /v1/work/" + item.WorkID + ":" + name, body: verbBody(item.Rev+rev, more)}
	}
}

// onStalled is onWork for an item that an operator took away.
func onStalled(name string) situation {
	return func(t *testing.T, r *rig) question {
		t.Helper()
		item := r.claimed(t, false)
		r.given(t, "POST /v1/admin/work/"+item.WorkID+":stall", "")
		return question{target: "POST /v1/admin/work/" + item.WorkID + ":" + name}
	}
}

// reported is the callback of a platform service that has a directive; attempt
// is added to its attempt, so that it may be a stale one.
func reported(path string, attempt int, more string) situation {
	return func(t *testing.T, r *rig) question {
		t.Helper()
		item := r.claimed(t, false)
		got := decoded[api.Directive](t, answer{Body: string(item.Directive)})
		return question{target: "POST " + path, body: fmt.Sprintf(
			`{"jobId":%q,"stepId":%q,"tenant_id":"t","attempt_no":%d,"lease_id":%q,"timestamp":"2026-01-27T11:02:00Z"%s}`,
			got.JobID, got.StepID, int(got.AttemptNo)+attempt, got.LeaseID, more)}
	}
}

// retrying is the situation of a request about a bulk retry.
func retrying(method, rest string) situation {
	return func(t *testing.T, r *rig) question {
		t.Helper()
		made := decoded[api.Retry](t, r.given(t, "POST /v1/admin/retries", `{"tenant_id":"t"}`))
		return question{target: method + " /v1/admin/retries/" + made.RetryID + rest}
	}
}

// pausing is the situation of a request about a pause.
func pausing(t *testing.T, r *rig) question {
	t.Helper()
	made := decoded[api.Pause](t, r.given(t, "POST /v1/admin/pauses", `{"tenant_id":"t","reason":"why"}`))
	return question{target: "POST /v1/admin/pauses/" + made.PauseID + ":resume"}
}

// announced is the situation of a request about a webhook, whose attempts are
// exhausted if that is asked for.
func announced(exhausted bool) situation {
	return func(t *testing.T, r *rig) question {
		t.Helper()
		id := r.submitted(t)
		r.given(t, "POST /v1/jobs/"+id+":cancel", "")
		if exhausted {
			claims, err := announce.NewQueue(r.ledger).Take(t.Context(), 1, time.Minute)
			must(t, err)
			if len(claims) != 1 {
				t.Fatalf("%d webhooks are due", len(claims))
			}
			next := claims[0].Delivery()
			next.State, next.Attempts, next.LastStatus = realwebhooks.StateExhausted, 1, 500
			_, err = claims[0].Settle(t.Context(), next)
			must(t, err)
		}
		return question{target: "POST /v1/admin/webhooks/" + id + ".0:replay"}
	}
}

// filled is the situation in which there is a failed job, and all that is known
// of it, so that lists are not empty.
func filled(path string) situation {
	return func(t *testing.T, r *rig) question {
		t.Helper()
		r.failed(t)
		announced(true)(t, r)
		return question{target: "GET " + path}
	}
}
