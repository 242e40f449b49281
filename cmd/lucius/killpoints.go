//go:build killpoints

package main

import (
	"cmp"
	"context"
	"math"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/lucius-project/lucius/pkg/outbox/seqledger"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// killAt is the variable that names the point at which the process dies, and which
// arrival there counts, such as "after.commit.accept:3". Without it the process is not
// killed.
//
// The points are between the parts, so that no part knows of them:
//
//	before.X, after.X   before a write, and after the store has made it durable
//	    X = commit.{event}    the commit of a change, named after its event
//	    X = fire.claimed      the claim of an occurrence of a schedule, with the schedule
//	    X = cron.{verb}       the entry of a schedule
//	    X = {table}.{verb}    any other batch, by its table and its first op
//	    X = whole.{event}     a change in one write, pre and post included
//	    X = whole.cron        the same of a schedule
//	before.answer.{call}   an answer that is made and not sent
//	after.open             the store is open, and no request is served yet
//	before.close, after.close   all requests and loops have ended
//
// With any point but whole.* the store hides that it can apply a change in one write,
// so that there are points within a change.
const killAt = "LUCIUS_TEST_KILL_AT"

// breakAt is the same, but at its point the relay's window gets an illegal transition
// instead.
const breakAt = "LUCIUS_TEST_BREAK_AT"

// trap is the point at which the process dies, or its window is broken.
type trap struct {
	point  string
	left   atomic.Int64
	breaks bool
	window atomic.Pointer[seqledger.Window]
}

// breakableWindow tells the trap which window to break.
func breakableWindow(window *seqledger.Window) { armed().window.Store(window) }

// armed returns the trap of this process.
var armed = sync.OnceValue(func() *trap {
	t := &trap{breaks: os.Getenv(breakAt) != ""}
	var times string
	t.point, times, _ = strings.Cut(cmp.Or(os.Getenv(breakAt), os.Getenv(killAt)), ":")
	n, err := strconv.ParseInt(times, 10, 64)
	if t.point != "" && (err != nil || n < 1) {
		panic(killAt + " or " + breakAt + " names no count")
	}
	t.left.Store(n)
	return t
})

// reach ends the process if this is its point, as kill -9 does: it writes, closes and
// answers nothing more. Or it settles a row in the window that was never taken up, and
// leaves the end to the server.
func (t *trap) reach(point string) {
	if point != t.point || t.left.Add(-1) != 0 {
		return
	}
	if t.breaks {
		_, _ = t.window.Load().Commit(math.MaxUint64, time.Now()) // The window tells the server.
		return
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL) // It cannot fail.
	select {}
}

// killableStore puts points around the writes of the store.
func killableStore(store tablestore.Store) tablestore.Store {
	t := armed()
	t.reach("after.open")
	split := &splitStore{Store: store, trap: t}
	if atomic, ok := store.(tablestore.AtomicStore); ok && (t.point == "" || strings.Contains(t.point, ".whole")) {
		return &wholeStore{splitStore: split, store: atomic}
	}
	return split
}

// splitStore applies the stages of a change one by one.
type splitStore struct {
	tablestore.Store
	trap *trap
}

var _ tablestore.Wrapper = (*splitStore)(nil)

// Unwrap implements [tablestore.Wrapper].
func (s *splitStore) Unwrap() tablestore.Store { return s.Store }

// Commit implements [tablestore.Store].
func (s *splitStore) Commit(ctx context.Context, batch tablestore.Batch) ([]tablestore.ETag, error) {
	point := pointOf(batch)
	s.trap.reach("before." + point)
	etags, err := s.Store.Commit(ctx, batch)
	if err == nil {
		s.trap.reach("after." + point)
	}
	return etags, err
}

// Close implements [tablestore.Store].
func (s *splitStore) Close() error {
	s.trap.reach("before.close")
	err := s.Store.Close()
	s.trap.reach("after.close")
	return err
}

// wholeStore applies a change in one write.
type wholeStore struct {
	*splitStore
	store tablestore.AtomicStore
}

var _ tablestore.AtomicStore = (*wholeStore)(nil)

// GetAll implements [tablestore.AtomicStore].
func (s *wholeStore) GetAll(ctx context.Context, keys []tablestore.Key) ([]tablestore.Row, error) {
	return s.store.GetAll(ctx, keys)
}

// CommitAll implements [tablestore.AtomicStore].
func (s *wholeStore) CommitAll(
	ctx context.Context, batches []tablestore.Batch, applied func([][]tablestore.ETag),
) ([][]tablestore.ETag, error) {
	point := "whole"
	for _, batch := range batches {
		if event := journaledEvent(batch); event != "" {
			point = "whole." + event
		} else if batch[0].Key.Partition == entriesOfSchedules {
			point = "whole." + entriesOfSchedules
		}
	}
	s.trap.reach("before." + point)
	etags, err := s.store.CommitAll(ctx, batches, applied)
	if err == nil {
		s.trap.reach("after." + point)
	}
	return etags, err
}

// pointOf names a batch.
func pointOf(batch tablestore.Batch) string {
	if event := journaledEvent(batch); event != "" {
		return "commit." + event
	}
	verbs := map[tablestore.Verb]string{
		tablestore.Insert: "insert", tablestore.Replace: "replace", tablestore.Delete: "delete",
		tablestore.Put: "put", tablestore.Discard: "discard",
	}
	first := &batch[0]
	switch {
	case strings.HasPrefix(first.Key.Row, "FIRE:"):
		return "fire." + first.Properties.Get("outcome").String()
	case first.Key.Partition == entriesOfSchedules:
		return entriesOfSchedules + "." + verbs[first.Verb]
	}
	return first.Key.Table + "." + verbs[first.Verb]
}

// entriesOfSchedules is the partition of the entries of schedules.
const entriesOfSchedules = "cron"

// journaledEvent returns the event whose journal row the batch holds, or "".
func journaledEvent(batch tablestore.Batch) string {
	for _, op := range batch {
		if strings.HasPrefix(op.Key.Row, "EVENT:") && op.Verb == tablestore.Insert {
			return op.Properties.Get("event").String()
		}
	}
	return ""
}

// killableAnswers puts a point before each answer, named after the last word of
// the request's path.
func killableAnswers(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		word := r.URL.Path[strings.LastIndexAny(r.URL.Path, "/:")+1:]
		handler.ServeHTTP(&trappedAnswer{ResponseWriter: w, point: "before.answer." + word}, r)
	})
}

type trappedAnswer struct {
	http.ResponseWriter
	point string
}

// WriteHeader implements [http.ResponseWriter].
func (a *trappedAnswer) WriteHeader(status int) {
	armed().reach(a.point)
	a.ResponseWriter.WriteHeader(status)
}

// Unwrap leads [http.ResponseController] to the writer inside.
func (a *trappedAnswer) Unwrap() http.ResponseWriter { return a.ResponseWriter }
