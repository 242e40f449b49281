package workqueue_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/workqueue"
)

// naive models the ready index as a set, next to a process that reads it.
type naive struct {
	*index

	rows map[string]*naiveRow
}

// naiveRow is one hint of the index.
type naiveRow struct {
	hint    ledger.Hint
	told    bool // this process's mirror was told of it
	written time.Time
	fresh   bool // written during the take that is under way
	picked  bool
	// If the hint was set aside. A hint that was dropped, because there was no room, may
	// return earlier.
	until           time.Time
	failed, dropped bool
}

const (
	modelLimit = 6
	// modelPatience is how long hints of another process may be missed: until the backlog
	// is read again while its head is held back, otherwise until the head is read again.
	modelPatience = 6 * time.Second
)

// The mirror hands out each hint of the index once, and none that is held back or set
// aside. It returns fewer than asked only if there are no more, whatever is committed, held
// and put back in between. Pages and the mirror hold only a few hints here.
func TestMirror_IsASetOfHints(t *testing.T) {
	t.Parallel()
	for name, split := range map[string]bool{"atomic": false, "split": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				// A test in a synctest bubble has no deadline for rapid to query.
				rapid.Check(struct{ testing.TB }{t}, func(r *rapid.T) { newNaive(t, split).play(r) })
			})
		})
	}
}

func newNaive(t *testing.T, split bool) *naive {
	n := &naive{rows: map[string]*naiveRow{}}
	if split {
		store := tap()
		n.index = newIndex(t, store, store, modelLimit)
	} else {
		store := tapAtomic()
		n.index = newIndex(t, store, store.tapped, modelLimit)
	}
	n.mirror.SetSizes(3, 7, 5, 2)
	return n
}

func (n *naive) play(r *rapid.T) {
	r.Repeat(map[string]func(*rapid.T){
		"commit":     func(r *rapid.T) { n.add(r, true) },
		"write":      func(r *rapid.T) { n.add(r, n.ledger.Exclusive()) },
		"take":       n.takeSome,
		"take again": n.takeSome,
		"ends":       n.end,
		"cancel":     n.cancel,
		"hold":       n.hold,
		"sleep":      func(r *rapid.T) { time.Sleep(rapid.SampledFrom(modelSleeps).Draw(r, "sleep")) },
		"meanwhile": func(r *rapid.T) {
			told := n.ledger.Exclusive() || rapid.Bool().Draw(r, "told")
			hints := n.draw(r)
			n.tap.afterPage(rapid.IntRange(0, 4).Draw(r, "pages"), func() { n.put(r, told, true, hints) })
		},
		"": func(*rapid.T) { n.mirror.Inside() },
	})
	n.finish(r)
}

var modelSleeps = []time.Duration{time.Millisecond, 300 * time.Millisecond, time.Second, 7 * time.Second}

// draw returns made-up hints of a tenant, a kind and a protocol, newer or older than
// others.
func (n *naive) draw(r *rapid.T) []ledger.Hint {
	hints := make([]ledger.Hint, rapid.IntRange(1, 12).Draw(r, "hints"))
	tenant := rapid.SampledFrom([]string{"a", "a", "a", "b", "c"}).Draw(r, "tenant")
	kind := rapid.SampledFrom([]string{"ocr", "ocr", "ocr", "embed"}).Draw(r, "service")
	protocol := rapid.SampledFrom([]string{"p", "q"}).Draw(r, "protocol")
	age := rapid.SampledFrom([]time.Duration{0, 0, 20 * time.Millisecond}).Draw(r, "age")
	class := rapid.SampledFrom([]statemachine.Class{statemachine.ClassNormal, statemachine.ClassNormal, statemachine.ClassBulk}).Draw(r, "class")
	for i := range hints {
		hints[i] = n.hint(tenant)
		hints[i].Class = class
		hints[i].Kind.Service, hints[i].Target.Service, hints[i].ProtocolID = kind, kind, protocol
		hints[i].Since = hints[i].Since.Add(-age)
	}
	return hints
}

func (n *naive) add(r *rapid.T, told bool) { n.put(r, told, false, n.draw(r)) }

// put writes hints, and adds those of this process to the mirror.
func (n *naive) put(r *rapid.T, told, fresh bool, hints []ledger.Hint) {
	for _, hint := range hints {
		batch := tablestore.Batch{{Verb: tablestore.Put, Key: hintKey(&hint), Properties: tablestore.Properties{
			{Name: "protocol_id", Value: tablestore.String(hint.ProtocolID)},
		}}}
		for _, batch := range []tablestore.Batch{batch, {{Verb: tablestore.Put, Key: catalogKey(&hint)}}} {
			if _, err := n.store.Commit(n.ctx, batch); err != nil {
				r.Fatal(err)
			}
		}
		n.rows[hint.WorkID] = &naiveRow{hint: hint, told: told, fresh: fresh, written: time.Now()}
		if told {
			n.mirror.Ready(hint, true)
		}
	}
}

// takeSome takes hints, and compares them with the set.
func (n *naive) takeSome(r *rapid.T) {
	request := workqueue.ClaimRequest{Max: rapid.IntRange(1, 12).Draw(r, "max")}
	switch rapid.IntRange(0, 5).Draw(r, "filter") {
	case 0:
		request.Tenants = []string{"a", "c"}
	case 1:
		request.Services = []string{"ocr"}
	}
	n.checkTake(r, request)
}

func (n *naive) checkTake(r *rapid.T, request workqueue.ClaimRequest) (taken int) {
	time.Sleep(time.Microsecond) // So that every earlier read is older than this claim.
	began := time.Now()
	got, err := n.Take(n.ctx, request)
	if err != nil {
		r.Fatal(err)
	}
	if len(got) > request.Max {
		r.Fatalf("a claim of %d took %d", request.Max, len(got))
	}
	failed := 0
	for _, hint := range got {
		row := n.rows[hint.WorkID]
		switch {
		case row == nil || row.hint != hint:
			r.Fatalf("%+v is not in the index", hint)
		case row.picked:
			r.Fatalf("%s was handed out twice", hint.WorkID)
		case n.held(&hint) || !wants(&request, &hint):
			r.Fatalf("%s is held back, or was not asked for", hint.WorkID)
		case !row.until.After(began) || row.dropped:
		case row.failed:
			failed++
		default:
			r.Fatalf("%s set aside until %s", hint.WorkID, row.until)
		}
		row.picked = true
	}
	if failed > 0 && failed < len(got) {
		r.Fatalf("%d hints had failed just now, and there were %d others", failed, len(got)-failed)
	}
	for _, row := range n.rows {
		if len(got) < request.Max && n.missed(row, &request, began, len(got)) {
			r.Fatalf("a claim of %d took %d and not %+v", request.Max, len(got), *row)
		}
		row.fresh = false
	}
	return len(got)
}

// missed reports whether a claim that returned fewer than asked should have taken the row.
func (n *naive) missed(row *naiveRow, request *workqueue.ClaimRequest, began time.Time, taken int) bool {
	switch {
	case row.picked, row.fresh, row.until.After(began), n.held(&row.hint), !wants(request, &row.hint):
		return false
	case row.told:
		return true
	case taken > 0: // Only a claim that finds nothing else must find it.
		return false
	}
	headHeld := false
	for _, other := range n.rows {
		same := other.hint.TenantID == row.hint.TenantID && other.hint.Kind == row.hint.Kind
		headHeld = headHeld || same && n.held(&other.hint)
	}
	return !headHeld || began.Sub(row.written) > modelPatience
}

func (n *naive) held(hint *ledger.Hint) bool {
	return hint.ProtocolID == n.heldProtocol.Load() || hint.TenantID == n.heldTenant.Load()
}

func wants(r *workqueue.ClaimRequest, hint *ledger.Hint) bool {
	return (len(r.Tenants) == 0 || slices.Contains(r.Tenants, hint.TenantID)) &&
		(len(r.Services) == 0 || slices.Contains(r.Services, hint.Kind.Service))
}

// choose draws one of the matching rows, nil if there is none.
func (n *naive) choose(r *rapid.T, picked bool) *naiveRow {
	var ids []string
	for id, row := range n.rows {
		if row.picked == picked {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	slices.Sort(ids)
	return n.rows[rapid.SampledFrom(ids).Draw(r, "row")]
}

// end ends the claim of a hint that was taken.
func (n *naive) end(r *rapid.T) {
	row := n.choose(r, true)
	if row == nil {
		return
	}
	_, kept, _ := n.mirror.Inside()
	row.picked, row.until, row.failed, row.dropped = false, time.Time{}, false, kept >= modelLimit
	switch rapid.SampledFrom([]string{"claimed", "claimed", "void", "back", "early", "failed"}).Draw(r, "end") {
	case "claimed":
		n.drop(r, row, true)
	case "void":
		n.drop(r, row, false)
	case "back":
		n.mirror.PutBack(row.hint)
	case "early":
		row.until = time.Now().Add(time.Second)
		n.mirror.SetAside(row.hint, false)
	case "failed":
		row.until, row.failed = time.Now().Add(time.Second), true
		n.mirror.SetAside(row.hint, true)
	}
}

// drop deletes a row; told says that a commit of this process did it.
func (n *naive) drop(r *rapid.T, row *naiveRow, told bool) {
	delete(n.rows, row.hint.WorkID)
	if _, err := n.store.Commit(n.ctx, tablestore.Batch{{Verb: tablestore.Discard, Key: hintKey(&row.hint)}}); err != nil {
		r.Fatal(err)
	}
	if told {
		n.mirror.Ready(row.hint, false)
	} else {
		n.mirror.Settle(row.hint)
	}
}

// cancel ends the wait of an item that was not taken.
func (n *naive) cancel(r *rapid.T) {
	if row := n.choose(r, false); row != nil {
		n.drop(r, row, true)
	}
}

// hold begins and ends pauses.
func (n *naive) hold(r *rapid.T) {
	n.heldProtocol.Store(rapid.SampledFrom([]string{"none", "none", "p"}).Draw(r, "held protocol"))
	n.heldTenant.Store(rapid.SampledFrom([]string{"none", "none", "b"}).Draw(r, "held tenant"))
}

// finish takes all that is left.
func (n *naive) finish(r *rapid.T) {
	n.tap.afterPage(0, nil)
	n.heldProtocol.Store("none")
	n.heldTenant.Store("none")
	for _, row := range n.rows {
		if row.picked {
			row.picked, row.until = false, time.Time{}
			n.mirror.PutBack(row.hint)
		}
	}
	time.Sleep(2 * modelPatience)
	for left := len(n.rows); left > 0; {
		taken := n.checkTake(r, workqueue.ClaimRequest{Max: 5})
		if taken == 0 {
			r.Fatal(fmt.Sprint(left, " hints are lost"))
		}
		left -= taken
	}
}
