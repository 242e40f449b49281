package tablestore_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
)

// logged is a store that records the rows of each batch, and runs a hook before
// it commits the batch.
type logged struct {
	tablestore.Store
	mu     sync.Mutex
	log    []string
	before func(rows string) error
}

func (l *logged) commit(batch tablestore.Batch) error {
	var rows []string
	for _, op := range batch {
		rows = append(rows, op.Key.Row)
	}
	name := strings.Join(rows, "+")
	l.mu.Lock()
	l.log = append(l.log, name)
	l.mu.Unlock()
	if l.before == nil {
		return nil
	}
	return l.before(name)
}

func splitStore() *logged {
	l := &logged{}
	l.Store = storetest.BeforeCommit(memstore.New(memstore.Options{Split: true}), l.commit)
	return l
}

// putRow returns a batch that puts one row.
func putRow(row string) tablestore.Batch { return tablestore.Batch{{Verb: put, Key: key(row)}} }

// twoStages returns a change with two stages on either side of the commit.
func twoStages() tablestore.Change {
	return tablestore.Change{
		Pre:    []tablestore.Stage{{putRow("pre1")}, {putRow("pre2")}},
		Commit: tablestore.Batch{{Verb: put, Key: key("commit")}, {Verb: put, Key: key("head")}},
		Post:   []tablestore.Stage{{putRow("post1")}, {putRow("post2")}},
	}
}

func TestApplyRunsTheStagesInOrder(t *testing.T) {
	t.Parallel()
	store := splitStore()
	applied, err := tablestore.Apply(t.Context(), store, twoStages(), nil)
	if err != nil || !applied.Committed || applied.PostErr != nil || len(applied.ETags) != 6 {
		t.Errorf("apply: %+v, %v", applied, err)
	}
	want := []string{"pre1", "pre2", "commit+head", "post1", "post2"}
	if diff := cmp.Diff(want, store.log); diff != "" {
		t.Errorf("batches (-want +got):\n%s", diff)
	}
}

func TestApplyStopsAtTheFirstFailure(t *testing.T) {
	t.Parallel()
	failure := errors.New("failure")
	for at, want := range map[string]struct {
		log       []string
		committed bool
	}{
		"pre1":        {[]string{"pre1"}, false},
		"pre2":        {[]string{"pre1", "pre2"}, false},
		"commit+head": {[]string{"pre1", "pre2", "commit+head"}, false},
		"post1":       {[]string{"pre1", "pre2", "commit+head", "post1"}, true},
		"post2":       {[]string{"pre1", "pre2", "commit+head", "post1", "post2"}, true},
	} {
		store := splitStore()
		store.before = func(rows string) error {
			if rows == at {
				return failure
			}
			return nil
		}
		applied, err := tablestore.Apply(t.Context(), store, twoStages(), nil)
		if diff := cmp.Diff(want.log, store.log); diff != "" {
			t.Errorf("failure at %s: batches (-want +got):\n%s", at, diff)
		}
		if applied.Committed != want.committed || errors.Is(err, failure) == want.committed || errors.Is(applied.PostErr, failure) != want.committed {
			t.Errorf("failure at %s: %+v, %v", at, applied, err)
		}
		if _, surely := applied.ETags[key(strings.Split(at, "+")[0])]; surely {
			t.Errorf("failure at %s: its row is reported as written", at)
		}
		if _, surely := applied.ETags[key("pre1")]; surely != (at != "pre1") {
			t.Errorf("failure at %s: the first row is reported as written: %t", at, surely)
		}
	}
}

func TestApplySubmitsAnUnknownBatchOnce(t *testing.T) {
	t.Parallel()
	store := splitStore()
	store.before = func(rows string) error {
		if rows == "pre2" {
			return tablestore.ErrUnknown
		}
		return nil
	}
	applied, err := tablestore.Apply(t.Context(), store, twoStages(), nil)
	if !errors.Is(err, tablestore.ErrUnknown) || applied.Committed {
		t.Errorf("apply: %+v, %v, want ErrUnknown", applied, err)
	}
	if diff := cmp.Diff([]string{"pre1", "pre2"}, store.log); diff != "" {
		t.Errorf("batches (-want +got):\n%s", diff)
	}
}

func TestApplyRunsTheBatchesOfAStageInParallel(t *testing.T) {
	t.Parallel()
	store := splitStore()
	var together sync.WaitGroup
	together.Add(3)
	store.before = func(rows string) error {
		if strings.HasPrefix(rows, "pre") {
			together.Done()
			together.Wait() // Returns only when all three are running.
		}
		return nil
	}
	change := tablestore.Change{
		Pre:    []tablestore.Stage{{putRow("pre1"), putRow("pre2"), putRow("pre3")}, {}},
		Commit: putRow("commit"),
	}
	if applied, err := tablestore.Apply(t.Context(), store, change, nil); err != nil || len(applied.ETags) != 4 {
		t.Errorf("apply: %+v, %v", applied, err)
	}
}

func TestApplyWaitsForAllOfAStageAndReturnsItsFirstError(t *testing.T) {
	t.Parallel()
	first, second := errors.New("first"), errors.New("second")
	store := splitStore()
	secondFailed := make(chan struct{})
	store.before = func(rows string) error {
		switch rows {
		case "a":
			<-secondFailed
			return first
		case "b":
			close(secondFailed)
			return second
		}
		return nil
	}
	applied, err := tablestore.Apply(t.Context(), store, tablestore.Change{
		Pre: []tablestore.Stage{{putRow("a"), putRow("b"), putRow("c")}}, Commit: putRow("commit")}, nil)
	if !errors.Is(err, first) {
		t.Errorf("apply: %v, want the error of the first batch", err)
	}
	if _, surely := applied.ETags[key("c")]; !surely || len(applied.ETags) != 1 {
		t.Errorf("ETags %v, want that of the batch that succeeded", applied.ETags)
	}
}

func TestApplyOnAnAtomicStoreIsOneWrite(t *testing.T) {
	t.Parallel()
	store, counter := storetest.Counting(memstore.New(memstore.Options{}))
	if _, err := tablestore.Apply(t.Context(), store, twoStages(), nil); err != nil {
		t.Fatal(err)
	}
	want := storetest.Counts{Commits: 1, Batches: 5, Ops: 6}
	if diff := cmp.Diff(want, counter.Counts()); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
}

func TestApplyTriesAgainOnlyForAConflictOfPost(t *testing.T) {
	t.Parallel()
	taken := tablestore.Batch{{Verb: insert, Key: key("taken")}}
	for name, test := range map[string]struct {
		change  tablestore.Change
		commits int64
		failed  bool
	}{
		"post alone":      {tablestore.Change{Commit: putRow("c"), Post: []tablestore.Stage{{taken}}}, 3, false},
		"commit, no post": {tablestore.Change{Commit: taken}, 1, true},
		"commit, post":    {tablestore.Change{Commit: taken, Post: []tablestore.Stage{{putRow("p")}}}, 1, true},
		"both": {tablestore.Change{Commit: taken, Post: []tablestore.Stage{{
			{{Verb: tablestore.Delete, Key: key("taken"), ETag: tablestore.Own}}}}}, 2, true},
	} {
		store, counter := storetest.Counting(memstore.New(memstore.Options{}))
		if _, err := store.Commit(t.Context(), taken); err != nil {
			t.Fatal(err)
		}
		counter.Reset()
		applied, err := tablestore.Apply(t.Context(), store, test.change, nil)
		if errors.Is(err, tablestore.ErrConflict) != test.failed || applied.Committed == test.failed {
			t.Errorf("%s: %+v, %v", name, applied, err)
		}
		if got := counter.Counts().Commits; got != test.commits {
			t.Errorf("%s: %d writes, want %d", name, got, test.commits)
		}
	}
}

func TestApplyReturnsAnUnknownOutcomeOfTheOneWrite(t *testing.T) {
	t.Parallel()
	store, faults := storetest.Faulty(memstore.New(memstore.Options{}))
	faults.Plan(storetest.Fault{Call: storetest.CommitCall, After: true})
	applied, err := tablestore.Apply(t.Context(), store, twoStages(), nil)
	if !errors.Is(err, tablestore.ErrUnknown) || applied.Committed || len(applied.ETags) != 0 {
		t.Errorf("apply: %+v, %v, want ErrUnknown", applied, err)
	}
}

func TestApplyRefusesAnInvalidChangeBeforeItWrites(t *testing.T) {
	t.Parallel()
	own := func(row string) tablestore.Batch {
		return tablestore.Batch{{Verb: replace, Key: key(row), ETag: tablestore.Own}}
	}
	drop := tablestore.Batch{{Verb: discard, Key: key("a")}}
	for name, test := range map[string]struct {
		change tablestore.Change
		text   string // Empty when the change is valid.
	}{
		"commit alone":      {tablestore.Change{Commit: putRow("c")}, ""},
		"own across stages": {tablestore.Change{Pre: []tablestore.Stage{{putRow("a")}, {own("a")}}, Commit: own("a"), Post: []tablestore.Stage{{own("a")}}}, ""},
		"own of the commit": {tablestore.Change{Commit: putRow("a"), Post: []tablestore.Stage{{own("a")}}}, ""},
		"no commit":         {tablestore.Change{Pre: []tablestore.Stage{{putRow("a")}}}, "invalid store request: empty batch"},
		"an empty batch":    {tablestore.Change{Pre: []tablestore.Stage{{putRow("a")}, {nil}}, Commit: putRow("c")}, "invalid store request: empty batch"},
		"own in one stage":  {tablestore.Change{Pre: []tablestore.Stage{{putRow("a"), tablestore.Batch{own("b")[0]}}}, Commit: putRow("c")}, "replace table/p/b: no earlier stage"},
		"own in pre of a row that the commit writes": {tablestore.Change{Pre: []tablestore.Stage{{own("c")}}, Commit: putRow("c")}, "replace table/p/c: no earlier stage"},
		"own after a discard":                        {tablestore.Change{Pre: []tablestore.Stage{{putRow("a")}, {drop}}, Commit: own("a")}, "replace table/p/a: no earlier stage"},
		"a row twice in a stage":                     {tablestore.Change{Commit: putRow("c"), Post: []tablestore.Stage{{putRow("a")}, {putRow("b"), putRow("b")}}}, "put table/p/b: row is in two batches"},
		"own of a row in the same stage":             {tablestore.Change{Pre: []tablestore.Stage{{putRow("a"), own("a")}}, Commit: putRow("c")}, "replace table/p/a: row is in two batches"},
		"a clear of a partition":                     {tablestore.Change{Commit: putRow("c"), Post: []tablestore.Stage{{{{Verb: tablestore.Clear, Key: key("")}}}}}, "only an AtomicStore clears"},
		"a row in two stages":                        {tablestore.Change{Pre: []tablestore.Stage{{putRow("a")}}, Commit: putRow("a"), Post: []tablestore.Stage{{drop}}}, ""},
	} {
		store := splitStore()
		_, err := tablestore.Apply(t.Context(), store, test.change, nil)
		if (err == nil) != (test.text == "") || err != nil && !strings.Contains(err.Error(), test.text) {
			t.Errorf("%s: %v, want %q", name, err, test.text)
		}
		if err != nil && (!errors.Is(err, tablestore.ErrInvalid) || len(store.log) > 0) {
			t.Errorf("%s: %v does not wrap ErrInvalid, or %q were written", name, err, store.log)
		}
	}
}

// A caller that gives up on a slow store repeats its request. If its first change had stopped
// between two stages, no request would ever get further.
func TestApplyFinishesWhatItHasBegun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		store := splitStore()
		store.before = func(string) error {
			cancel()
			time.Sleep(5 * time.Second)
			return nil
		}
		applied, err := tablestore.Apply(ctx, store, twoStages(), nil)
		if err != nil || !applied.Committed || applied.PostErr != nil {
			t.Errorf("%+v, %v", applied, err)
		}
		if _, err := tablestore.Apply(ctx, store, twoStages(), nil); !errors.Is(err, tablestore.ErrUnavailable) || len(store.log) != 5 {
			t.Errorf("a change that had not begun: %v, the store has %q", err, store.log)
		}
	})
}

func TestApplyDoesNotFinishForEver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		store := splitStore()
		store.before = func(string) error {
			cancel()
			time.Sleep(20 * time.Second)
			return nil
		}
		applied, err := tablestore.Apply(ctx, store, twoStages(), nil)
		if err == nil || applied.Committed {
			t.Errorf("%+v, %v", applied, err)
		}
	})
}
