package ledger_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// object returns a JSON object of that size that repeats a text.
func object(text string, size int) json.RawMessage {
	const before, after = `{"uri":"s3://b","x":"`, `"}`
	room := size - len(before) - len(after)
	return []byte(before + strings.Repeat(text, room/len(text)) + strings.Repeat("x", room%len(text)) + after)
}

// largest is the largest command that is admitted.
func largest(text string, payload int) ledger.Command {
	long := func(n int) string { return strings.Repeat("&", n) }
	ref, urls := object(text, commands.MaxRef), make([]string, commands.MaxCallbackURLs)
	for i := range urls {
		urls[i] = "https://a.example/?" + long(commands.MaxCallbackURL-19)
	}
	cmd := command("largest")
	cmd.Job.TenantID, cmd.Job.RequestType = strings.Repeat("t", commands.MaxTenantID), long(commands.MaxRequestType)
	cmd.Job.DocID, cmd.Job.IdempotencyKey = long(commands.MaxDocID), long(commands.MaxIdempotencyKey)
	cmd.Job.CorrelationID, cmd.Job.CallbackURLs = strings.Repeat("c", commands.MaxCorrelationID), urls
	cmd.Job.InputRef, cmd.Job.OutputRef, cmd.Job.WorkspaceRef = ref, ref, ref
	cmd.Payload = object(text, payload)
	step := cmd.Steps[1] // It gets the result of the previous step.
	step.PayloadPointer, step.OutputRef, step.Type, step.Service = "", ref, long(128), long(128)
	step.Routing.RoutingKeyUsed = long(commands.MaxTenantID + commands.MaxDocID)
	cmd.Steps = make([]statemachine.Step, commands.MaxSteps)
	for i := range cmd.Steps {
		cmd.Steps[i] = step
		cmd.Steps[i].ID = "step_" + tablestore.Pad(i, 2)
	}
	return cmd
}

// An admitted command fits the rows and batches of every later change: a job is never
// stuck because a longer reference makes its directive too large.
func TestSizes_TheLargestCommandLivesThroughAllChanges(t *testing.T) {
	t.Parallel()
	for name, cmd := range map[string]ledger.Command{
		"ASCII":  largest("a", commands.LargestPayload),
		"quotes": largest(`\"`, commands.LargestPayload),
		"kanji":  largest("語", commands.LargestPayload),
		"markup": largest("<", commands.DefaultMaxPayload),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			id := b.Submit(cmd)
			product := statemachine.Product{OutputRef: cmd.Job.InputRef, ResultRef: cmd.Job.InputRef}
			for range commands.MaxSteps - 1 {
				m := b.Handoff.Last()
				b.Apply(id, ledgertest.Sent(m))
				b.Apply(id, ledgertest.Started(m))
				b.Apply(id, statemachine.Result{
					StepID: m.StepID, Pair: ledgertest.Pair(m), Status: statemachine.ResultSucceeded, Product: product,
				})
			}
			m := b.Handoff.Last()
			b.Apply(id, ledgertest.Sent(m))
			b.Apply(id, ledgertest.Started(m))
			b.Apply(id, statemachine.Result{
				StepID: m.StepID, Pair: ledgertest.Pair(m), Status: statemachine.ResultFailedFinal, Product: product,
				ErrorCode: strings.Repeat("&", 1000), ErrorMessage: strings.Repeat("&", 10_000),
			})
			payload, err := b.Payload(t.Context(), id)
			if err != nil || string(payload) != string(cmd.Payload) {
				t.Errorf("%d bytes of payload came back as %d, %v", len(cmd.Payload), len(payload), err)
			}
		})
	}
}

func TestSizes_TheLargestCommandIsCancelledWhole(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.Submit(largest("<", commands.DefaultMaxPayload))
	b.Apply(id, statemachine.Cancel{Reason: strings.Repeat("&", 1024)})
}

// Markup takes six bytes a character on the wire to Azure: a command that fits no
// batch is refused as a whole.
func TestSizes_ACommandThatNoBatchHoldsLeavesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	if _, err := b.Accept(t.Context(), largest("<", commands.LargestPayload)); !errors.Is(err, tablestore.ErrTooLarge) {
		t.Errorf("answered %v", err)
	}
	if live, entries := b.LiveJobs(), b.entries(); len(live)+len(entries) > 0 {
		t.Errorf("left %v and %v", live, entries)
	}
}
