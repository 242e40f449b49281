package audit

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/workqueue/lifecycle"
)

// change is an EVENT row: one change of a job.
type change struct {
	rev       int64
	at        time.Time
	operation string
	moves     []move
	items     []lifecycle.Event // the moves of work items
}

// move is one transition of a change.
type move struct {
	Object  string `json:"o"`
	ID      string `json:"i"`
	Type    string `json:"t"`
	From    string `json:"f"`
	To      string `json:"to"`
	Attempt int    `json:"n"`
}

func readChange(p tablestore.Properties) (change, error) {
	c := change{
		rev: p.Get("rev").Int(), at: p.Get("at").Time(), operation: p.Get("operation").String(),
	}
	if err := json.Unmarshal(tablestore.Large(p, "entries"), &c.moves); err != nil {
		return c, fmt.Errorf("its entries are not readable: %w", err)
	}
	var err error
	c.items, err = ReadMoves(p)
	return c, err
}

// judgeJournal replays the history: it begins at 1, has no gap, is walked along
// listed edges, never leaves a terminal state, and ends where the rows are.
func (j *judge) judgeJournal() {
	states, operations := map[string]string{}, map[string]bool{}
	var last time.Time
	for i, c := range j.changes {
		if c.rev != int64(i)+1 {
			j.violate(Journal, "change %d of its history is numbered %d", i+1, c.rev)
			return
		}
		if c.operation == "" || operations[c.operation] {
			j.violate(Journal, "change %d was made by operation %q, which is not its own", c.rev, c.operation)
		}
		if c.at.Before(last) {
			j.violate(Journal, "change %d is of %s, before the one before it", c.rev, stamp(c.at))
		}
		operations[c.operation], last = true, c.at
		for _, m := range c.moves {
			j.replay(states, c.rev, m)
		}
	}
	if n := int64(len(j.changes)); n != j.Job.Rev {
		j.violate(Journal, "it is at rev %d and its history has %d changes", j.Job.Rev, n)
		return
	}
	j.compare(states, "job", j.Job.State)
	for i := range j.Steps {
		if s := &j.Steps[i]; s.State != "PENDING" || states["step "+s.ID] != "" {
			j.compare(states, "step "+s.ID, s.State)
		}
	}
	for i := range j.Outbox {
		j.compare(states, "outbox "+j.Outbox[i].ID, j.Outbox[i].State)
	}
}

// replay takes one move.
func (j *judge) replay(states map[string]string, rev int64, m move) {
	name := m.Object
	if m.ID != "" {
		name += " " + m.ID
	}
	was := states[name]
	if was == "" && m.Object == "step" {
		was = "PENDING"
	}
	states[name] = m.To
	switch {
	case m.Type == statemachine.EventStepCarried && was == "PENDING", m.From == "" && states[name] == m.To && was == "":
		return
	case m.From != was:
		j.violate(Journal, "at rev %d %s goes from %s, and was %s", rev, name, m.From, was)
	case ended(was) && m.Object != "outbox" && m.From != m.To:
		j.violate(Terminal, "at rev %d %s leaves %s", rev, name, was)
	case m.From != m.To && !listed(m):
		j.violate(Edges, "at rev %d %s goes from %s to %s", rev, name, m.From, m.To)
	}
}

// compare holds the end of the history against a row.
func (j *judge) compare(states map[string]string, name, state string) {
	if states[name] != state {
		j.violate(Journal, "%s is %s and its history ends in %q", name, state, states[name])
	}
}

// listed reports whether the move is an edge of the transition tables.
func listed(m move) bool {
	switch m.Object {
	case "job":
		return edge(statemachine.JobEdges, m)
	case "step":
		return edge(statemachine.StepEdges, m)
	case "outbox":
		return edge(statemachine.OutboxEdges, m)
	default:
		return false
	}
}

func edge[S ~string](edges []statemachine.Edge[S], m move) bool {
	for _, e := range edges {
		if string(e.From) == m.From && string(e.To) == m.To {
			return true
		}
	}
	return false
}

// stamp is a time in messages.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }
