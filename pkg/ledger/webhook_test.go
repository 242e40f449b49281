package ledger_test

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// announced returns a job that ended and has two webhooks.
func (b *bundle) announced(t *testing.T) string {
	t.Helper()
	cmd := command("h")
	cmd.Job.CallbackURLs = []string{"https://a.example/hook", "https://b.example/hook"}
	id := b.Submit(cmd)
	b.Send(id, statemachine.Cancel{})
	return id
}

// webhooks returns the job's webhooks.
func (b *bundle) webhooks(t *testing.T, id string) []ledger.WebhookRow {
	t.Helper()
	found, err := b.Webhooks(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestWebhooks_AreWrittenWithTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := keeper(t, split(), nil)
		id := b.announced(t)
		found := b.webhooks(t, id)
		if len(found) != 2 || found[1].URL != "https://b.example/hook" || found[1].State != ledger.WebhookPending ||
			found[1].ID() != id+".1" {
			t.Errorf("%+v", found)
		}
		if due := b.Entries(ledger.Webhook, time.Now()); len(due) != 2 {
			t.Errorf("%+v is due", due)
		}
	})
}

// The rows are written after the commit: a crash in between must not lose them, and a
// delivered webhook must not be sent again.
func TestWebhooks_SurviveACrashAfterTheCommit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := keeper(t, split(), nil)
		var committed atomic.Bool // The batches of a stage are committed concurrently.
		b.store.set(func(batch tablestore.Batch, commit commit) ([]tablestore.ETag, error) {
			if committed.Load() {
				return nil, tablestore.ErrUnavailable
			}
			tags, err := commit()
			if commits(batch) && len(batch) > 1 && batch[1].Verb == tablestore.Replace {
				committed.Store(true)
			}
			return tags, err
		})
		id := b.announced(t)
		b.store.set(nil)
		if found := b.webhooks(t, id); len(found) != 0 {
			t.Fatalf("%+v was written", found)
		}
		time.Sleep(6 * time.Second)
		entry := b.Entries(ledger.Timer, time.Now())[0]
		for range 2 { // Twice, as after another crash.
			if standing, _, err := b.Fire(t.Context(), entry, statemachine.DeadlinePassed{}); err != nil {
				t.Fatalf("%s, %v", standing, err)
			}
		}
		if found := b.webhooks(t, id); len(found) != 2 || len(b.Entries(ledger.Webhook, time.Now())) != 2 {
			t.Errorf("%+v", found)
		}
	})
}

func TestWebhookEntries_NameTheTenantForTheLog(t *testing.T) {
	t.Parallel()
	job := &statemachine.Job{ID: "j1", TenantID: "tenant_a", CallbackURLs: []string{"https://a.example", "https://b.example"}}
	for _, entry := range ledger.WebhookEntries(job) {
		if want := (statemachine.LogFields{JobID: "j1", TenantID: "tenant_a"}); entry.Fields() != want {
			t.Errorf("fields %+v, want %+v", entry.Fields(), want)
		}
	}
}

func TestTakeWebhook_HoldsItForOneAttempt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := keeper(t, split(), nil)
		id := b.announced(t)
		entry := b.Entries(ledger.Webhook, time.Now())[0]
		taken, job, err := b.TakeWebhook(t.Context(), entry, time.Minute)
		if err != nil || taken == nil || job.Job.ID != id {
			t.Fatalf("%+v, %v", taken, err)
		}
		if again, _, err := b.TakeWebhook(t.Context(), entry, time.Minute); err != nil || again != nil {
			t.Errorf("taken twice: %+v, %v", again, err)
		}
		next := *taken
		next.State, next.Attempts, next.LastStatus = ledger.WebhookDelivered, 1, 200
		if moved, err := b.RecordWebhookAttempt(t.Context(), taken, &next); err != nil || !moved {
			t.Fatalf("%t, %v", moved, err)
		}
		if moved, err := b.RecordWebhookAttempt(t.Context(), taken, &next); err != nil || moved {
			t.Errorf("recorded twice: %t, %v", moved, err)
		}
		time.Sleep(time.Hour)
		if due := b.Entries(ledger.Webhook, time.Now()); len(due) != 1 {
			t.Errorf("%+v is due", due)
		}
	})
}

// givenUp abandons all webhooks that are due.
func (b *bundle) givenUp(t *testing.T) {
	t.Helper()
	for _, entry := range b.Entries(ledger.Webhook, time.Now()) {
		taken, _, err := b.TakeWebhook(t.Context(), entry, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		next := *taken
		next.State = ledger.WebhookExhausted
		if moved, err := b.RecordWebhookAttempt(t.Context(), taken, &next); err != nil || !moved {
			t.Fatalf("%t, %v", moved, err)
		}
	}
}

// Each page of a tenant is full, and its end discloses no job of another tenant.
func TestUndelivered_OfATenantDisclosesNothingOfOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := keeper(t, split(), nil)
		var own []string
		for i := range 9 {
			cmd := command(strconv.Itoa(i))
			cmd.Job.TenantID = []string{"tenant_a", "tenant_b", "tenant_b", "tenant", "tenant_a:"}[i%5]
			cmd.Job.CallbackURLs = []string{"https://a.example/hook"}
			id := b.Submit(cmd)
			b.Apply(id, statemachine.Cancel{})
			if cmd.Job.TenantID == "tenant_a" {
				own = append(own, id)
			}
			time.Sleep(time.Millisecond)
		}
		b.givenUp(t)
		slices.Reverse(own)
		var got []string
		for after := ""; ; {
			page, next, _, err := b.Undelivered(t.Context(), "tenant_a", 1, after)
			if err != nil || len(page) != 1 {
				t.Fatalf("a page of %d behind %q: %v", len(page), after, err)
			}
			got = append(got, page[0].JobID)
			if after = next; after == "" {
				break
			}
			if !strings.Contains(after, page[0].JobID) {
				t.Errorf("the page ends at %q, and not at its own %s", after, page[0].JobID)
			}
		}
		if !slices.Equal(got, own) {
			t.Errorf("%v, want %v", got, own)
		}
		if all, _, _, err := b.Undelivered(t.Context(), "", 100, ""); err != nil || len(all) != 9 {
			t.Errorf("of all tenants: %d, %v", len(all), err)
		}
		b.rewrite(t, own[0], "JOB", func(tablestore.Properties) tablestore.Properties {
			return tablestore.Properties{{Name: "rev", Value: tablestore.String("x")}}
		})
		if all, _, bad, err := b.Undelivered(t.Context(), "", 100, ""); err != nil || len(all) != 8 || !strings.Contains(bad.Error(), own[0]) {
			t.Errorf("with a job that cannot be read: %d, %v, %v", len(all), bad, err)
		}
		row := tablestore.Key{Table: "luciusjobindex", Partition: "undelivered", Row: ledger.ListOrder(own[1]) + ":0"}
		b.Put(row, tablestore.Properties{{Name: "v", Value: tablestore.Int(99)}})
		count, after := 0, ""
		for more := true; more; more = after != "" {
			page, next, _, err := b.Undelivered(t.Context(), "", 1, after)
			if err != nil || next != "" && next == after {
				t.Fatalf("behind %q follows %q: %v", after, next, err)
			}
			count, after = count+len(page), next
		}
		if count != 7 {
			t.Errorf("with a row that cannot be read: %d", count)
		}
	})
}

func TestTakeWebhook_AfterItsProcessCrashed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := keeper(t, split(), nil)
		b.announced(t)
		if _, _, err := b.TakeWebhook(t.Context(), b.Entries(ledger.Webhook, time.Now())[0], time.Minute); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		due := b.Entries(ledger.Webhook, time.Now())
		if len(due) != 2 {
			t.Fatalf("%+v is due", due)
		}
		for _, entry := range due {
			if taken, _, err := b.TakeWebhook(t.Context(), entry, time.Minute); err != nil || taken == nil {
				t.Errorf("%+v, %v", taken, err)
			}
		}
	})
}

// The process crashed between the entries and the rows of the webhooks, and the next one starts after the grace. Its pass finds the entries
// while the sweeper finishes the end. The pass must not delete them: the sweeper writes the rows next.
func TestTakeWebhook_LeavesTheEntryOfAnEndThatIsNotDone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := keeper(t, split(), nil)
		row := func(batch tablestore.Batch) bool { return strings.HasPrefix(batch[0].Key.Row, "WEBHOOK:") }
		b.store.set(func(batch tablestore.Batch, commit commit) ([]tablestore.ETag, error) {
			if row(batch) {
				return nil, tablestore.ErrUnavailable
			}
			return commit()
		})
		b.announced(t)
		time.Sleep(10 * time.Minute)
		pass := func() (taken int) {
			for _, entry := range b.Entries(ledger.Webhook, time.Now()) {
				if w, _, err := b.TakeWebhook(t.Context(), entry, time.Minute); err != nil {
					t.Fatal(err)
				} else if w != nil {
					taken++
				}
			}
			return taken
		}
		b.store.set(func(batch tablestore.Batch, commit commit) ([]tablestore.ETag, error) {
			if row(batch) && batch[0].Verb == tablestore.Insert {
				pass()
			}
			return commit()
		})
		if _, _, err := b.Fire(t.Context(), b.Entries(ledger.Timer, time.Now())[0], statemachine.DeadlinePassed{}); err != nil {
			t.Fatal(err)
		}
		b.store.set(nil)
		time.Sleep(2 * time.Minute)
		if taken := pass(); taken != 2 {
			t.Errorf("%d webhooks are sent, want 2", taken)
		}
	})
}

// A job is purged while an attempt to send its webhook ends: the webhook is listed as given up after the purge has emptied the list.
func TestTakeWebhook_UnlistsTheWebhookOfAPurgedJob(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := keeper(t, split(), nil)
		b.announced(t)
		time.Sleep(3 * time.Hour)
		taken, _, err := b.TakeWebhook(t.Context(), b.Entries(ledger.Webhook, time.Now())[0], time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		var stood atomic.Bool
		b.store.set(func(batch tablestore.Batch, commit commit) ([]tablestore.ETag, error) {
			lists := strings.HasPrefix(batch[0].Key.Partition, "undelivered") && batch[0].Verb == tablestore.Put
			if lists && stood.CompareAndSwap(false, true) {
				if purged, err := b.Purge(t.Context(), b.Entries(ledger.Retention, time.Now())[0]); err != nil || purged != ledger.PurgeDone {
					t.Errorf("%s, %v", purged, err)
				}
			}
			return commit()
		})
		next := *taken
		next.State = ledger.WebhookExhausted
		if moved, err := b.RecordWebhookAttempt(t.Context(), taken, &next); err != nil || moved || !stood.Load() {
			t.Fatalf("%t, %v", moved, err)
		}
		b.store.set(nil)
		time.Sleep(10 * time.Minute)
		for _, entry := range b.Entries(ledger.Webhook, time.Now()) {
			if taken, _, err := b.TakeWebhook(t.Context(), entry, time.Minute); err != nil || taken != nil {
				t.Fatalf("%+v, %v", taken, err)
			}
		}
		for _, list := range []string{"undelivered", "undelivered:tenant_a"} {
			rows, err := tablestore.ScanAll(t.Context(), b.store, tablestore.Query{Table: b.Tables().Index, Partition: list})
			if err != nil || len(rows) != 0 {
				t.Errorf("%s: %+v, %v", list, rows, err)
			}
		}
	})
}

func TestReplayWebhook(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := keeper(t, split(), nil)
		id := b.announced(t)
		if _, replayed, err := b.ReplayWebhook(t.Context(), id+".0"); err != nil || replayed {
			t.Errorf("one that waits: %t, %v", replayed, err)
		}
		for i, entry := range b.Entries(ledger.Webhook, time.Now()) {
			taken, _, err := b.TakeWebhook(t.Context(), entry, time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			next := *taken
			next.State = []ledger.WebhookState{ledger.WebhookGone, ledger.WebhookRefused}[i]
			if _, err := b.RecordWebhookAttempt(t.Context(), taken, &next); err != nil {
				t.Fatal(err)
			}
		}
		given, next, _, err := b.Undelivered(t.Context(), "tenant_a", 10, "")
		if err != nil || next != "" || len(given) != 2 {
			t.Fatalf("given up: %+v, %v", given, err)
		}
		if others, _, _, err := b.Undelivered(t.Context(), "tenant_b", 10, ""); err != nil || len(others) != 0 {
			t.Errorf("of another tenant: %+v, %v", others, err)
		}
		if _, replayed, err := b.ReplayWebhook(t.Context(), id+".0"); err != nil || !replayed {
			t.Errorf("replay: %t, %v", replayed, err)
		}
		for _, tenant := range []string{"", "tenant_a"} {
			if given, _, _, err = b.Undelivered(t.Context(), tenant, 10, ""); err != nil || len(given) != 1 {
				t.Errorf("given up after the replay, of %q: %+v, %v", tenant, given, err)
			}
		}
		if due := b.Entries(ledger.Webhook, time.Now()); len(due) != 1 {
			t.Errorf("%+v is due", due)
		}
		for _, unknown := range []string{"gone.0", id + ".7", "x", id + ".x"} {
			if _, _, err := b.ReplayWebhook(t.Context(), unknown); !errors.Is(err, ledger.ErrJobNotFound) {
				t.Errorf("%s: %v", unknown, err)
			}
		}
	})
}

// A replay makes the webhook due at once: its entry is written before the webhook. The pass of another process must not take the
// entry for an old one: without it, the webhook would never be sent, nor could it be replayed again.
func TestReplayWebhook_KeepsItsEntryWhileItIsUnderWay(t *testing.T) {
	t.Parallel()
	for name, after := range map[string]time.Duration{"and lands": 0, "and is too slow": 6 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := keeper(t, split(), nil)
				id := b.announced(t)
				b.givenUp(t)
				pass := func() (taken int) {
					for _, entry := range b.Entries(ledger.Webhook, time.Now()) {
						if w, _, err := b.TakeWebhook(t.Context(), entry, time.Minute); err != nil {
							t.Fatal(err)
						} else if w != nil {
							taken++
						}
					}
					return taken
				}
				var stood atomic.Bool
				b.store.set(func(batch tablestore.Batch, commit commit) ([]tablestore.ETag, error) {
					if strings.HasPrefix(batch[0].Key.Row, "WEBHOOK:") && stood.CompareAndSwap(false, true) {
						time.Sleep(after)
						pass()
					}
					return commit()
				})
				if _, replayed, err := b.ReplayWebhook(t.Context(), id+".0"); err != nil || !replayed {
					t.Fatalf("replay: %t, %v", replayed, err)
				}
				if taken := pass(); taken != 1 {
					t.Errorf("%d webhooks are sent after the replay", taken)
				}
				if due := b.Entries(ledger.Webhook, time.Now()); len(due) != 0 {
					t.Errorf("%+v is due", due)
				}
			})
		})
	}
}

// After a replay the webhook is taken out of the list of those that were given up. If that is slow, the webhook may have been given up
// again by then: it stays in the list.
func TestReplayWebhook_AWebhookThatIsGivenUpAgainIsListed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := keeper(t, split(), nil)
		id := b.announced(t)
		b.givenUp(t)
		var stood atomic.Bool // The batches of a stage are committed concurrently.
		b.store.set(func(batch tablestore.Batch, commit commit) ([]tablestore.ETag, error) {
			removes := batch[0].Verb == tablestore.Discard || batch[0].Verb == tablestore.Delete
			if removes && strings.HasPrefix(batch[0].Key.Partition, "undelivered") {
				if stood.CompareAndSwap(false, true) {
					b.givenUp(t)
				}
				time.Sleep(time.Second)
			}
			return commit()
		})
		if _, replayed, err := b.ReplayWebhook(t.Context(), id+".0"); err != nil || !replayed || !stood.Load() {
			t.Fatalf("replay: %t, %v", replayed, err)
		}
		for _, tenant := range []string{"", "tenant_a"} {
			if given, _, _, err := b.Undelivered(t.Context(), tenant, 10, ""); err != nil || len(given) != 2 {
				t.Errorf("given up, of %q: %+v, %v", tenant, given, err)
			}
		}
	})
}
