package ledger_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
)

// lines returns a script on a process whose store has hooks.
func lines(t *testing.T, cfg ledger.Config) (*lineScript, *bundle) {
	t.Helper()
	b := open(t, split(), cfg)
	return newLineScript(t, b.Ledger), b
}

// A failed job can be released though its rerun was lost, and though nothing has abandoned that rerun yet.
func TestLine_ReleaseOfAJobWhoseRerunWasLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, b := lines(t, ledger.Config{Shards: 1})
		s.play(`
			accept a
			accept b
			fail a`)
		b.lose(t, func() {
			if _, err := s.Rerun(t.Context(), ledger.Rerun{JobID: s.jobs["a"], From: ledger.FromFailed}); err == nil {
				t.Fatal("the rerun was meant to fail")
			}
		})
		s.play(`refused release a`)
		time.Sleep(2 * time.Minute)
		s.play(`
			release a
			want b=runs`)
	})
}

// A look that finds that the first job has expired projects its end.
func TestLine_ProjectsAJobThatExpiredBeforeItsTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		projector := &sketch{}
		s, _ := lines(t, ledger.Config{Shards: 1, Projector: projector})
		s.play(`
			accept a
			accept b expires 30s
			accept c`)
		time.Sleep(time.Minute)
		s.play(`
			end a
			want b=expired c=runs`)
		for _, r := range projector.given {
			if r.Job.ID == s.jobs["b"] && r.Job.State == statemachine.JobFailedFinal {
				return
			}
		}
		t.Error("the end of b was not projected")
	})
}

// A look that several wait for is done though the caller who asked first has gone.
func TestLine_SharedLookOfACallerWhoHasGone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, b := lines(t, ledger.Config{Shards: 1})
		s.play(`
			accept a
			accept b`)
		message := s.MessageOf(s.jobs["a"])
		held := make(chan struct{})
		b.store.set(func(batch tablestore.Batch, commit commit) ([]tablestore.ETag, error) {
			if strings.HasPrefix(batch[0].Key.Partition, "line:") {
				<-held
			}
			return commit()
		})
		go func() { _, _ = s.Accept(t.Context(), ordered("c", statemachine.OrderFIFO)) }() // It has the turn.
		synctest.Wait()
		gone, cancel := context.WithCancel(t.Context())
		done := make(chan ledger.Result)
		job := s.Read(s.jobs["b"]).Job
		go func() {
			_, _ = s.Change(gone, job.ID, statemachine.Pause{})
			_, _ = s.Change(gone, job.ID, statemachine.Resume{}) // It looks.
		}()
		synctest.Wait()
		go func() {
			result, err := s.Change(t.Context(), message.JobID, ledgertest.Ended(message, statemachine.ResultSucceeded, ""))
			if err != nil {
				t.Error(err)
			}
			done <- result
		}()
		synctest.Wait()
		cancel()
		synctest.Wait()
		close(held)
		if result := <-done; result.PostErr != nil {
			t.Errorf("after the end: %v", result.PostErr)
		}
		b.store.set(nil)
		s.play(`want a=done b=runs`)
	})
}

// A command that is refused by a busy line is sent again while its first accept is under way: it is no
// reason to refuse it that this accept has the line's only place.
func TestLine_RejectDoesNotRefuseItsOwnCommand(t *testing.T) {
	t.Parallel()
	for name, late := range map[string]bool{"the accept has crashed": false, "the line batch arrives late": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s, b := lines(t, ledger.Config{Shards: 1})
				cmd := ordered("a", statemachine.OrderReject)
				if late {
					first := true
					b.store.set(func(batch tablestore.Batch, commit commit) ([]tablestore.ETag, error) {
						if first && strings.HasPrefix(batch[0].Key.Partition, "line:") {
							first = false
							go func() {
								time.Sleep(time.Microsecond)
								_, _ = commit()
							}()
							return nil, tablestore.ErrUnknown
						}
						return commit()
					})
				} else {
					b.loseAccept(t, cmd)
				}
				accepted, err := s.Accept(t.Context(), cmd)
				if err != nil {
					t.Fatalf("accept: %v", err)
				}
				s.jobs["a"] = accepted.Job.ID
				s.play(`want a=runs`)
				if _, err := s.Accept(t.Context(), ordered("b", statemachine.OrderReject)); !isLineBusy(err) {
					t.Errorf("another command: %v", err)
				}
			})
		})
	}
}

func isLineBusy(err error) bool {
	_, busy := errors.AsType[*ledger.LineBusyError](err)
	return busy
}

// The purge of a job that blocks its line is put off, so that many of them do not keep the purge busy. After
// the release the job can be rerun for as long as its retention.
func TestLine_PurgeOfAJobThatBlocks(t *testing.T) {
	t.Parallel()
	ledgertest.OnEachStore(t, func(t *testing.T, store tablestore.Store) {
		synctest.Test(t, func(t *testing.T) {
			s := newLineScript(t, ledgertest.Open(t, ledger.Config{Store: store, Shards: 1, Retention: time.Hour}))
			s.play(`
				accept a
				fail a`)
			time.Sleep(2 * time.Hour)
			s.play(`wait 1s`)
			purge := func(want ledger.Purged) {
				t.Helper()
				for _, result := range s.Purge(t.Context(), s.Entries(ledger.Retention, time.Now())) {
					if result.Outcome != want || result.Err != nil {
						t.Errorf("the purge is %v, %v; want %v", result.Outcome, result.Err, want)
					}
				}
			}
			purge(ledger.PurgeLater)
			if due := s.Entries(ledger.Retention, time.Now()); len(due) != 0 {
				t.Errorf("%d entries are due after the purge", len(due))
			}
			time.Sleep(time.Minute)
			purge(ledger.PurgeLater)
			s.play(`release a`)
			time.Sleep(time.Minute)
			purge(ledger.PurgeLater)
			s.play(`
				rerun a a2
				want a2=runs`)
			time.Sleep(58 * time.Minute)
			if due := s.Entries(ledger.Retention, time.Now()); len(due) != 0 {
				t.Errorf("%d entries are due within an hour of the release", len(due))
			}
			time.Sleep(time.Minute)
			purge(ledger.PurgeDone)
			if _, err := s.Job(t.Context(), s.jobs["a"]); !errors.Is(err, ledger.ErrJobNotFound) {
				t.Errorf("the job is still there: %v", err)
			}
		})
	})
}

// Two replicas that put off the purge of one job at the same time leave one entry.
func TestLine_PurgePutOffByTwoReplicas(t *testing.T) {
	t.Parallel()
	ledgertest.OnEachStore(t, func(t *testing.T, store tablestore.Store) {
		synctest.Test(t, func(t *testing.T) {
			meanwhile := func() {}
			hooked := storetest.BeforeCommit(store, func(batch tablestore.Batch) error {
				if strings.HasPrefix(batch[0].Key.Row, string(ledger.Retention)) {
					do := meanwhile
					meanwhile = func() {}
					do()
				}
				return nil
			})
			cfg := ledger.Config{Store: hooked, Shared: true, Shards: 1, Retention: time.Hour}
			s, replica := newLineScript(t, ledgertest.Open(t, cfg)), ledgertest.Open(t, cfg)
			s.play(`
				accept a
				fail a`)
			time.Sleep(2 * time.Hour)
			s.play(`wait 1s`)
			due := s.Entries(ledger.Retention, time.Now())
			met := false
			meanwhile = func() {
				time.Sleep(5 * time.Millisecond)
				met = replica.Purge(t.Context(), due)[0] == ledger.PurgeResult{Outcome: ledger.PurgeLater}
			}
			if got := s.Purge(t.Context(), due)[0]; got.Outcome != ledger.PurgeLater || got.Err != nil || !met {
				t.Fatalf("the purge is %v, %v; that of the other replica was put off: %t", got.Outcome, got.Err, met)
			}
			if left := s.Entries(ledger.Retention, time.Now().Add(time.Hour)); len(left) != 1 || !left[0].Due.After(time.Now()) {
				t.Errorf("entries %v", left)
			}
		})
	})
}

// Of the entries of a job whose purge is put off one is left in the end, also if the clock has gone back.
func TestLine_PurgePutOffEndsWithOneEntry(t *testing.T) {
	t.Parallel()
	for name, dues := range map[string][]time.Duration{
		"of two entries": {-time.Second, 0}, "not due any more": {time.Minute}, "one of two not due any more": {0, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ledgertest.OnEachStore(t, func(t *testing.T, store tablestore.Store) {
				synctest.Test(t, func(t *testing.T) {
					s := newLineScript(t, ledgertest.Open(t, ledger.Config{Store: store, Shards: 1, Retention: time.Hour}))
					s.play(`
						accept a
						fail a
						wait 2h`)
					old := s.Entries(ledger.Retention, time.Now())[0]
					properties := s.Row(entryKey(&old)).Properties
					s.Discard(entryKey(&old))
					var page []ledger.Entry
					for _, due := range dues {
						entry := old
						entry.Due = time.Now().Truncate(time.Minute).Add(due)
						s.Put(entryKey(&entry), properties)
						page = append(page, entry)
					}
					for range 3 {
						outcomes(t, s.Purge(t.Context(), page))
						time.Sleep(time.Minute)
						page = s.Entries(ledger.Retention, time.Now())
					}
					if left := s.Entries(ledger.Retention, time.Now().Add(time.Hour)); len(left) != 1 {
						t.Errorf("entries %v", left)
					}
				})
			})
		})
	}
}

// meddled is an atomic store on which something else happens just before a write to a line.
type meddled struct {
	tablestore.AtomicStore
	before func()
}

func (m *meddled) CommitAll(ctx context.Context, batches []tablestore.Batch, applied func([][]tablestore.ETag)) ([][]tablestore.ETag, error) {
	for _, batch := range batches {
		if before := m.before; before != nil && strings.HasPrefix(batch[0].Key.Partition, "line:") {
			m.before = nil
			before()
		}
	}
	return m.AtomicStore.CommitAll(ctx, batches, applied)
}

// A look that starts again hands the item of the job whose turn it is to one waiting worker.
func TestLine_TurnHandsItsItemOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, armed, asked := ledgertest.Atomic().(tablestore.AtomicStore), false, 0
		shared := &meddled{AtomicStore: store}
		s := newLineScript(t, ledgertest.Open(t, ledger.Config{Store: shared, Shards: 1, Taker: func(*ledger.Hint) *ledger.Taker {
			if !armed {
				return nil
			}
			asked++
			claim := &ledger.Claim{Owner: "w", RequestID: "r"}
			return &ledger.Taker{Claim: claim, Context: t.Context(), Done: func(*ledger.Claimed) {}}
		}}))
		s.play(`
			accept a
			accept b`)
		other := newLineScript(t, ledgertest.Open(t, ledger.Config{Store: store, Shards: 1}))
		armed, shared.before = true, func() { other.play(`accept c`) }
		s.play(`
			end a
			want b=runs`)
		if shared.before != nil || asked > 1 {
			t.Errorf("%d workers were asked; the other accept is left: %t", asked, shared.before != nil)
		}
	})
}

// The entry of a row that waits for a relay may be due while the accept of its job is under way. It leaves
// the accept alone at first.
func TestLine_DueRowOfAnAcceptUnderWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, b := lines(t, ledger.Config{Shards: 1, Held: func(statemachine.Target) bool { return true }})
		fired := map[ledger.FireOutcome]int{}
		b.store.set(func(batch tablestore.Batch, commit commit) ([]tablestore.ETag, error) {
			if batch[0].Key.Table == "luciusledger" && len(fired) == 0 {
				fired = s.Expire(ledger.Dispatch)
			}
			return commit()
		})
		s.play(`accept a`)
		b.store.set(nil)
		if fired[ledger.Early] != 1 || len(fired) != 1 {
			t.Errorf("fired %v", fired)
		}
	})
}

// A rerun that takes the place of a job that blocks its line is accepted beyond the tenant's limit: those
// that wait for it would else refuse it.
func TestLine_RerunOfABlockerBeyondTheLimit(t *testing.T) {
	t.Parallel()
	ledgertest.OnEachStore(t, func(t *testing.T, store tablestore.Store) {
		s := newLineScript(t, ledgertest.Open(t, ledger.Config{Store: store, Shards: 1, Limit: func(string) int { return 2 }}))
		s.play(`
			accept a
			accept b
			fail a
			accept c
			refused accept d
			rerun a a2
			want a2=runs b=waits
			refused accept d`)
	})
}

// The histories of the failed job and of the next one say who released the line, and why.
func TestLine_ReleaseIsInTheHistories(t *testing.T) {
	t.Parallel()
	ledgertest.OnEachStore(t, func(t *testing.T, store tablestore.Store) {
		s := newLineScript(t, ledgertest.Open(t, ledger.Config{Store: store, Shards: 1}))
		s.play(`
			accept a
			accept b
			fail a`)
		err := s.Release(ledger.WithCaller(t.Context(), "ann"), ledger.Release{
			LineID: ledger.LineID("tenant_a", "doc"), JobID: s.jobs["a"], Actor: "client", Reason: "sent by hand",
		})
		if err != nil {
			t.Fatal(err)
		}
		turn := s.Past(s.jobs["b"])[1]
		if want := "job " + s.jobs["a"] + " before it in its line was released by ann: sent by hand"; turn.Cause != want {
			t.Errorf("b began because %q, want %q", turn.Cause, want)
		}
		rejected, err := s.Rejected(t.Context(), s.jobs["a"])
		if err != nil {
			t.Fatal(err)
		}
		noted := rejected.History(0, 0)
		if len(noted) != 1 || noted[0].Caller != "ann" || !strings.Contains(noted[0].Cause, "sent by hand") {
			t.Errorf("the history of a has %+v", noted)
		}
	})
}

// A line is listed as long as a job waits in it, whatever its first job does.
func TestLine_IsListedWhileAJobWaits(t *testing.T) {
	t.Parallel()
	ledgertest.OnEachStore(t, func(t *testing.T, store tablestore.Store) {
		s := newLineScript(t, ledgertest.Open(t, ledger.Config{Store: store, Shards: 1}))
		listed := func(want int64) {
			t.Helper()
			lines, _, err := s.Lines(t.Context(), "tenant_a", 0, 10, "")
			if err != nil {
				t.Fatal(err)
			}
			var waiting int64
			for i := range lines {
				waiting += lines[i].Waiting()
			}
			if waiting != want || len(lines) > 1 {
				t.Errorf("%d lines with %d waiting jobs are listed, want %d", len(lines), waiting, want)
			}
		}
		s.play(`accept a`)
		listed(0)
		s.play(`
			accept b
			accept c`)
		listed(2)
		s.play(`
			end a
			end b
			end c
			places 0`)
		listed(0)
	})
}

// reading is a store on which something else happens just before a read of LINE.
type reading struct {
	tablestore.Store
	before func()
}

func (r *reading) Get(ctx context.Context, key tablestore.Key) (tablestore.Row, error) {
	if before := r.before; before != nil && key.Row == "LINE" {
		r.before = nil
		before()
	}
	return r.Store.Get(ctx, key)
}

// Another accept of the same command may adopt the job id of one that is under way, and commit after that one
// has read the record again. If its line is busy by then, the first is answered with the job: a refusal would
// delete the record that names it.
func TestLine_RefusalKeepsTheRecordOfAnAdoptedJob(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		inner := ledgertest.Split()
		slow := &reading{Store: inner}
		b := open(t, &hooked{Store: slow}, ledger.Config{Shards: 1})
		other := open(t, &hooked{Store: inner}, ledger.Config{Shards: 1})
		cmd := ordered("a", statemachine.OrderReject)
		var id string
		b.store.set(func(batch tablestore.Batch, commit commit) ([]tablestore.ETag, error) {
			if !strings.HasPrefix(batch[0].Key.Partition, "line:") {
				return commit()
			}
			b.store.set(nil)
			late := other.loseAccept(t, cmd)
			slow.before = func() {
				if err := late(); err != nil {
					t.Error(err)
				}
				accepted := other.MustAccept(cmd)
				id = accepted.Job.ID
				s := newLineScript(t, other.Ledger)
				s.jobs["a"] = id
				s.play(`
					end a
					accept z`)
			}
			return nil, tablestore.ErrUnknown
		})
		for range 2 {
			accepted, err := b.Accept(t.Context(), cmd)
			if err != nil || accepted.Job.ID != id || !accepted.Replayed {
				t.Errorf("accepted %s, replayed %t, %v; want job %s", accepted.Job.ID, accepted.Replayed, err, id)
			}
		}
	})
}

// torn is a store whose scan of a line may have read one row before and another after a change: it is no snapshot.
type torn struct {
	tablestore.Store
	tear func(page tablestore.Page) tablestore.Page
}

func (s *torn) Scan(ctx context.Context, query tablestore.Query) (tablestore.Page, error) {
	page, err := s.Store.Scan(ctx, query)
	if tear := s.tear; tear != nil && err == nil && strings.HasPrefix(query.Partition, "line:") {
		s.tear = nil
		page = tear(page)
	}
	return page, err
}

// A scan may pass the next place before it is inserted, and then find the one after that. A look must not take
// that one for the first.
func TestLine_LookIgnoresPlacesThatCameAfterItBegan(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &torn{Store: ledgertest.Split()}
		s := newLineScript(t, open(t, &hooked{Store: store}, ledger.Config{Shards: 1}).Ledger)
		var early []tablestore.Row // LINE and the place of a, before b and c
		keep := func(page tablestore.Page) tablestore.Page {
			early = slices.Clone(page.Rows)
			return page
		}
		s.play(`accept a`)
		store.tear = keep
		s.play(`places 1
			accept b
			accept c`)
		if len(early) != 2 {
			t.Fatalf("the line had %d rows, want LINE and one place", len(early))
		}
		store.tear = func(page tablestore.Page) tablestore.Page {
			page.Rows = append(early, page.Rows[len(page.Rows)-1])
			return page
		}
		s.play(`
			end a
			want a=done b=runs c=waits`)
	})
}

// A late copy of the first sending of a line's first place does not bring back the place of a job whose rerun
// is done: each sending has its own epoch.
func TestLine_LateCopyOfItsFirstPlace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, b := lines(t, ledger.Config{Shards: 1})
		var late tablestore.Batch
		b.store.set(func(batch tablestore.Batch, commit commit) ([]tablestore.ETag, error) {
			if late == nil && strings.HasPrefix(batch[0].Key.Partition, "line:") {
				late = slices.Clone(batch)
				return nil, tablestore.ErrUnavailable
			}
			return commit()
		})
		s.play(`
			refused accept a
			accept a
			fail a
			rerun a a2
			end a2
			places 0`)
		if _, err := b.store.Commit(t.Context(), late); err != nil {
			t.Fatal(err)
		}
		s.play(`
			places 1
			accept b
			want b=runs
			places 1`)
	})
}

// The place of a released job stays until a look removes it. A rerun does not take it: the next job has begun.
func TestLine_RerunOfAReleasedJobWhosePlaceIsLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, b := lines(t, ledger.Config{Shards: 1})
		s.play(`
			accept a
			accept b
			fail a`)
		b.store.set(func(batch tablestore.Batch, commit commit) ([]tablestore.ETag, error) {
			if strings.HasPrefix(batch[0].Key.Partition, "line:") && batch[len(batch)-1].Verb == tablestore.Delete {
				return nil, tablestore.ErrUnavailable
			}
			return commit()
		})
		s.play(`
			release a
			want b=runs
			places 2`)
		b.store.set(nil)
		s.play(`
			rerun a a2
			want b=runs a2=waits
			end b
			want a2=runs`)
	})
}

// The rerun of a job that blocks its line is in a slot that no limit refuses. If it loses that place or its
// job id before its commit, it takes another slot.
func TestLine_SlotOfARerunThatTriesAgain(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		at   func(batch tablestore.Batch) bool
		play string // before that write
		want string
	}{
		"the job is released meanwhile": {
			func(batch tablestore.Batch) bool { return strings.HasPrefix(batch[0].Key.Partition, "line:") },
			`release a`, `want b=runs a2=waits`,
		},
		"the accept is abandoned": {commits, `wait 11s`, `want b=waits a2=runs`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cfg := ledger.Config{Shards: 1, Limit: func(string) int { return 3 }}
				s, b := lines(t, cfg)
				other := newLineScript(t, open(t, &hooked{Store: b.store.Store}, cfg).Ledger)
				s.play(`accept a`)
				time.Sleep(time.Minute) // For so long after the next accept a slot is guessed.
				s.play(`
					accept b
					fail a`)
				other.jobs = s.jobs
				var met atomic.Bool
				b.store.set(func(batch tablestore.Batch, commit commit) ([]tablestore.ETag, error) {
					if test.at(batch) && met.CompareAndSwap(false, true) {
						other.play(test.play)
					}
					return commit()
				})
				s.play("rerun a a2\n" + test.want)
				job := s.Row(tablestore.Key{Table: "luciusledger", Partition: s.jobs["a2"], Row: "JOB"}).Properties
				slot := s.Row(tablestore.Key{
					Table: "luciusschedule", Partition: job.Get("slot_partition").String(), Row: job.Get("slot_row").String(),
				})
				if got := slot.Properties.Get("job_id").String(); got != s.jobs["a2"] {
					t.Errorf("the slot of the rerun is taken for job %s", got)
				}
				for _, found := range b.inspected(t) {
					if found.Repaired != "" {
						t.Errorf("the reconciler repaired: %s", found.Repaired)
					}
				}
			})
		})
	}
}
