package projectionstest_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
)

// sent is what the callbacks say about how they were sent.
var sent = statemachine.Report{Timestamp: "2000-01-01T00:00:00.000Z", CorrelationID: "corr"}

// verbs are the events of a job's newest attempt, by name.
var verbs = map[string]func(m ledger.Message) statemachine.Event{
	"taken":     func(m ledger.Message) statemachine.Event { return statemachine.DispatchClaimed{OutboxID: m.OutboxID} },
	"published": func(m ledger.Message) statemachine.Event { return published(m) },
	"rejected": func(m ledger.Message) statemachine.Event {
		return statemachine.PublishRejected{OutboxID: m.OutboxID, AttemptNo: m.AttemptNo, Reason: "malformed"}
	},
	"refused for good": func(m ledger.Message) statemachine.Event {
		return statemachine.PublishRejected{OutboxID: m.OutboxID, AttemptNo: m.AttemptNo, Reason: "too large", Permanent: true}
	},
	"ack": func(m ledger.Message) statemachine.Event {
		return statemachine.Ack{StepID: m.StepID, Pair: pair(m), Report: sent}
	},
	"heartbeat": func(m ledger.Message) statemachine.Event {
		return statemachine.Heartbeat{StepID: m.StepID, Pair: pair(m)}
	},
	"succeeded": func(m ledger.Message) statemachine.Event { return result(m, statemachine.ResultSucceeded) },
	"retryable": func(m ledger.Message) statemachine.Event { return result(m, statemachine.ResultFailedRetry) },
	"failed":    func(m ledger.Message) statemachine.Event { return result(m, statemachine.ResultFailedFinal) },
	"deadline":  func(ledger.Message) statemachine.Event { return statemachine.DeadlinePassed{} },
	"cancel":    func(ledger.Message) statemachine.Event { return statemachine.Cancel{} },
	"pause":     func(ledger.Message) statemachine.Event { return statemachine.Pause{} },
	"resume":    func(ledger.Message) statemachine.Event { return statemachine.Resume{} },
	"retry":     func(ledger.Message) statemachine.Event { return statemachine.Retry{} },
	"stall": func(m ledger.Message) statemachine.Event {
		return statemachine.Stall{StepID: m.StepID, AttemptNo: m.AttemptNo}
	},
}

// sortedVerbs returns the names of the verbs in a stable order.
func sortedVerbs() []string { return slices.Sorted(maps.Keys(verbs)) }

func pair(m ledger.Message) statemachine.Pair {
	return statemachine.Pair{AttemptNo: m.AttemptNo, LeaseID: m.LeaseID}
}

func published(m ledger.Message) statemachine.Event {
	return statemachine.Published{OutboxID: m.OutboxID, AttemptNo: m.AttemptNo}
}

func result(m ledger.Message, status statemachine.ResultStatus) statemachine.Event {
	return statemachine.Result{
		StepID: m.StepID, Pair: pair(m), Report: sent, Status: status,
		Product: statemachine.Product{ResultRef: fmt.Appendf(nil, `{"uri":"s3://b/%s"}`, m.StepID)},
	}
}

// live applies one verb to the job. "wait" lets time pass.
func (b *bundle) live(t *testing.T, jobID, verb string) {
	t.Helper()
	if verb == "wait" {
		time.Sleep(2 * time.Second)
		return
	}
	outcome := b.Send(jobID, verbs[verb](b.Handoff.Last()), worker)
	if outcome.PostErr != nil {
		t.Errorf("%s: %v", verb, outcome.PostErr)
	}
	if outcome.Message != nil {
		b.Handoff.Offer(*outcome.Message) // The relay that took the row gets its message.
	}
}

// After each change of each life the projected rows equal the aggregate.
func TestProject_ShowsEveryChangeOfALife(t *testing.T) {
	t.Parallel()
	for name, verbs := range map[string][]string{
		"all goes well":               {"published", "ack", "heartbeat", "succeeded", "published", "ack", "succeeded"},
		"a fast worker":               {"ack", "published", "succeeded", "succeeded"},
		"retried after a failed run":  {"published", "ack", "retryable", "wait", "deadline", "published", "ack", "succeeded", "succeeded"},
		"no ACK":                      {"published", "wait", "deadline", "wait", "deadline", "published", "ack", "failed"},
		"new fence after a rejection": {"rejected", "wait", "deadline", "wait", "taken", "published", "ack", "succeeded"},
		"never to be published":       {"refused for good"},
		"paused and resumed":          {"pause", "resume", "published", "ack", "pause", "succeeded", "resume", "published", "ack", "succeeded"},
		"cancelled at once":           {"cancel"},
		"cancelled under way":         {"published", "ack", "cancel", "succeeded"},
		"stalled by an operator":      {"published", "ack", "stall", "retry", "published", "ack", "succeeded", "succeeded"},
		"failed for good":             {"published", "ack", "failed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := setup(t)
				jobID := b.Submit(command("c"))
				b.assertShown(t, "accepted")
				for i, verb := range verbs {
					b.live(t, jobID, verb)
					b.assertShown(t, fmt.Sprintf("%d, %s", i, verb))
				}
				b.assertAtRest(t, jobID)
			})
		})
	}
}

// assertAtRest checks that each change has deleted its entry: only the job's
// own entry is left in the schedule.
func (b *bundle) assertAtRest(t *testing.T, jobID string) {
	t.Helper()
	for shard := range b.Shards() {
		entries, _, err := b.Due(t.Context(), ledger.Timer, shard, time.Now().AddDate(1, 0, 0), 1000, "")
		if err != nil {
			t.Fatal(err)
		}
		if len(entries) > 1 || len(entries) == 1 && entries[0].JobID != jobID {
			t.Errorf("left in the schedule: %+v", entries)
		}
	}
}

// Random verbs in random order, on both kinds of stores.
func TestProject_ShowsAnyLife(t *testing.T) {
	t.Parallel()
	for _, split := range []bool{true, false} {
		for seed := range uint64(20) {
			t.Run(fmt.Sprintf("split %t, seed %d", split, seed), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					rng := rand.New(rand.NewPCG(seed, 7))
					b := on(t, memstore.New(memstore.Options{Split: split}))
					jobID := b.Submit(command("c"))
					names := append(sortedVerbs(), "wait", "wait", "published", "published", "ack", "succeeded")
					for range 40 {
						b.live(t, jobID, names[rng.IntN(len(names))])
					}
					b.assertShown(t, "in the end")
				})
			})
		}
	}
}

// A rerun is a separate job.
func TestProject_ShowsARerun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t)
		jobID := b.Submit(command("c"))
		b.live(t, jobID, "cancel")
		again, err := b.Rerun(t.Context(), ledger.Rerun{JobID: jobID, From: ledger.FromStart})
		if err != nil || again.PostErr != nil {
			t.Fatalf("%v, %v", err, again.PostErr)
		}
		b.assertShown(t, "rerun")
	})
}
