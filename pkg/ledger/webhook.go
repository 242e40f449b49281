package ledger

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// indexUndelivered lists the abandoned webhooks, newest job first: of all tenants in
// one partition, and of each tenant in another, so that a page of one tenant reads
// no rows of others.
const indexUndelivered = "undelivered"

// WebhookState is the state of a webhook. All but PENDING are final until an
// operator replays it.
type WebhookState string

// The states.
const (
	WebhookPending   WebhookState = "PENDING"
	WebhookDelivered WebhookState = "DELIVERED"
	WebhookExhausted WebhookState = "EXHAUSTED" // every attempt failed, or the host was silent for too long
	WebhookGone      WebhookState = "GONE"      // the receiver wants no more
	WebhookRefused   WebhookState = "REFUSED"   // its address is not allowed
)

// WebhookRow is the notification of a job's end to one URL.
type WebhookRow struct {
	JobID    string       `column:"job_id"`
	TenantID string       `column:"tenant_id"`
	Index    int          `column:"index"` // of the URL among the command's
	URL      string       `column:"url"`
	State    WebhookState `column:"state"`
	Attempts int          `column:"attempts"`
	// NextAttemptAt is the time of the next attempt, while PENDING. During an attempt
	// it is after the end of that attempt.
	NextAttemptAt time.Time `column:"next_attempt_at"`
	// Seq rises with each change.
	//
	//	invariant: Seq < entry.Rev ⇒ the change that wrote the entry may still commit
	Seq        int64     `column:"seq"`
	LastStatus int       `column:"last_status"` // HTTP status of the last attempt, 0 for none
	LastError  string    `column:"last_error"`
	CreatedAt  time.Time `column:"created_at"`
	UpdatedAt  time.Time `column:"updated_at"`
	ReplayedAt time.Time `column:"replayed_at"` // the last time; zero if never

	tag    tablestore.ETag
	loaded tablestore.Properties
}

// An index row only names its webhook.
var (
	webhookCodec     = tablestore.NewCodec[WebhookRow]()
	undeliveredCodec = webhookCodec.Without(
		"tenant_id", "url", "state", "attempts", "next_attempt_at", "seq", "last_status", "last_error", "created_at", "updated_at",
		"replayed_at")
)

// ID is the webhook's id, the same for each attempt.
func (w *WebhookRow) ID() string { return w.JobID + "." + strconv.Itoa(w.Index) }

// Since is when the attempts began: at the end of the job, or with the last replay.
func (w *WebhookRow) Since() time.Time {
	if w.ReplayedAt.IsZero() {
		return w.CreatedAt
	}
	return w.ReplayedAt
}

// ParseWebhookID parses an id such as "<job id>.0".
func ParseWebhookID(id string) (jobID string, index int, err error) {
	jobID, number, ok := cutLast(id)
	index, err = strconv.Atoi(number)
	if !ok || err != nil || index < 0 || jobID == "" {
		return "", 0, fmt.Errorf("%q is not a webhook id", id)
	}
	return jobID, index, nil
}

func (l *Ledger) webhookKey(jobID string, index int) tablestore.Key {
	return l.jobKey(jobID, rowWebhook, tablestore.Pad(index, 2))
}

// undeliveredKeys addresses the index rows of an abandoned webhook: in the list of
// all tenants, and in that of its tenant.
func (l *Ledger) undeliveredKeys(tenantID, jobID string, index int) []tablestore.Key {
	row := ListOrder(jobID) + ":" + strconv.Itoa(index)
	return []tablestore.Key{
		{Table: l.tables.Index, Partition: undeliveredOf(""), Row: row},
		{Table: l.tables.Index, Partition: undeliveredOf(tenantID), Row: row},
	}
}

// undeliveredOf returns the partition of a tenant's abandoned webhooks, or of all if
// tenantID is empty.
func undeliveredOf(tenantID string) string {
	if tenantID == "" {
		return indexUndelivered
	}
	return tablestore.Join(indexUndelivered, tenantID)
}

// undelivered reports whether the webhook was abandoned.
func (w *WebhookRow) undelivered() bool {
	return w.State == WebhookExhausted || w.State == WebhookGone || w.State == WebhookRefused
}

// entry is the schedule entry of the webhook's next attempt.
func (w *WebhookRow) entry() entryRef {
	return entryRef{Kind: Webhook, Due: w.NextAttemptAt, Nonce: strconv.Itoa(w.Index)}
}

// putWebhookEntry writes that entry. Its revision is that of the webhook.
func (l *Ledger) putWebhookEntry(job statemachine.Job, w *WebhookRow) tablestore.Op {
	job.Rev = w.Seq
	return l.putEntry(&statemachine.Aggregate{Job: job}, w.entry(), reservation{})
}

// announce writes the webhooks of an ended job: for each URL a row and an entry. Rows
// are inserted, so that a repeat changes nothing.
func (l *Ledger) announce(job *statemachine.Job) (rows, entries tablestore.Stage) {
	for i, url := range job.CallbackURLs {
		w := &WebhookRow{
			JobID: job.ID, TenantID: job.TenantID, Index: i, URL: url, State: WebhookPending,
			NextAttemptAt: job.CompletedAt, CreatedAt: job.CompletedAt, UpdatedAt: job.CompletedAt,
		}
		rows = append(rows, tablestore.Batch{{
			Verb: tablestore.Insert, Key: l.webhookKey(job.ID, i), Properties: webhookCodec.Encode(w, nil),
		}})
		entries = append(entries, tablestore.Batch{l.putWebhookEntry(*job, w)})
	}
	return rows, entries
}

// WebhookEntries returns the schedule entries that the end of a job wrote for its
// webhooks, for an attempt at once.
func WebhookEntries(ended *statemachine.Job) []Entry {
	entries := make([]Entry, len(ended.CallbackURLs))
	target := statemachine.Target{TenantID: ended.TenantID, ProtocolID: ended.ProtocolID}
	for i := range entries {
		entries[i] = Entry{Kind: Webhook, Due: ended.CompletedAt, JobID: ended.ID, Nonce: strconv.Itoa(i), Target: target}
	}
	return entries
}

func decodeWebhook(row *tablestore.Row) (WebhookRow, error) {
	w := WebhookRow{tag: row.ETag, loaded: row.Properties}
	err := webhookCodec.Decode(row, &w)
	return w, err
}

// Webhooks returns the webhooks of a job by index, none before it has ended. It
// returns [ErrJobNotFound].
func (l *Ledger) Webhooks(ctx context.Context, jobID string) ([]WebhookRow, error) {
	if _, err := l.Job(ctx, jobID); err != nil {
		return nil, err
	}
	rows, err := tablestore.ScanAll(ctx, l.store, rowsOf(l.jobKey(jobID, rowWebhook)))
	if err != nil {
		return nil, fmt.Errorf("read the webhooks of job %s: %w", jobID, err)
	}
	found := make([]WebhookRow, len(rows))
	for i := range rows {
		if found[i], err = decodeWebhook(&rows[i]); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// webhook reads one webhook and its job. It returns [ErrJobNotFound] if either is
// missing, and the job nevertheless if it exists.
func (l *Ledger) webhook(ctx context.Context, jobID string, index int) (*WebhookRow, *statemachine.Aggregate, error) {
	agg, err := l.Job(ctx, jobID)
	if err != nil {
		return nil, nil, err
	}
	row, err := l.store.Get(ctx, l.webhookKey(jobID, index))
	if errors.Is(err, tablestore.ErrNotFound) {
		return nil, agg, ErrJobNotFound
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read webhook %d of job %s: %w", index, jobID, err)
	}
	w, err := decodeWebhook(&row)
	return &w, agg, err
}

// TakeWebhook claims a due webhook for one attempt: no other process sends it until
// hold has passed. It returns nil after a lost race, and for a stale entry, which it
// deletes.
func (l *Ledger) TakeWebhook(ctx context.Context, entry Entry, hold time.Duration,
) (*WebhookRow, *statemachine.Aggregate, error) {
	index, err := strconv.Atoi(entry.Nonce)
	if err != nil {
		return nil, nil, fmt.Errorf("webhook entry of job %s: %w", entry.JobID, err)
	}
	w, agg, err := l.webhook(ctx, entry.JobID, index)
	switch {
	case errors.Is(err, ErrJobNotFound) && (agg != nil || time.Since(entry.Due) < orphanGrace):
		return nil, nil, nil // The row may still be written: if its job exists, the end of the job is not done.
	case errors.Is(err, ErrJobNotFound): // An attempt that ended during the purge may have listed the webhook.
		if err := l.commitEach(ctx, discards(l.undeliveredKeys(entry.TenantID, entry.JobID, index))); err != nil {
			return nil, nil, fmt.Errorf("unlist a webhook of job %s: %w", entry.JobID, err)
		}
		return nil, nil, l.drop(ctx, entry)
	case err != nil:
		return nil, nil, err
	case w.State == WebhookPending && w.entry() == entry.ref():
	case w.Seq >= entry.Rev:
		return nil, nil, l.drop(ctx, entry)
	case time.Since(entry.Due) < orphanGrace:
		return nil, nil, nil // Its change may still commit.
	default: // Its change becomes impossible. The next pass deletes the entry.
		same := *w
		_, err := l.moveWebhook(ctx, agg, w, &same)
		return nil, nil, err
	}
	next := *w
	next.NextAttemptAt = tablestore.Now().Add(hold)
	taken, err := l.moveWebhook(ctx, agg, w, &next)
	if err != nil || !taken {
		return nil, nil, err
	}
	return &next, agg, nil
}

// RecordWebhookAttempt records the outcome of an attempt. next is the webhook's new
// state, with the same id. It returns false if another process has changed it since.
func (l *Ledger) RecordWebhookAttempt(ctx context.Context, taken, next *WebhookRow) (bool, error) {
	agg, err := l.Job(ctx, taken.JobID)
	if err != nil {
		return false, err
	}
	return l.moveWebhook(ctx, agg, taken, next)
}

// ReplayWebhook restarts the attempts of a webhook at once. It returns [ErrJobNotFound],
// and false if the webhook is PENDING already.
func (l *Ledger) ReplayWebhook(ctx context.Context, id string) (*WebhookRow, bool, error) {
	jobID, index, err := ParseWebhookID(id)
	if err != nil {
		return nil, false, ErrJobNotFound
	}
	var w *WebhookRow
	replayed := false
	err = tablestore.Retry(ctx, l.cfg.Random, func() error {
		old, agg, err := l.webhook(ctx, jobID, index)
		if w = old; err != nil || old.State == WebhookPending {
			return err
		}
		next := *old
		next.State, next.Attempts = WebhookPending, 0
		next.NextAttemptAt = tablestore.Now()
		next.ReplayedAt = next.NextAttemptAt
		moved, err := l.moveWebhook(ctx, agg, old, &next)
		if err == nil && !moved {
			return tablestore.ErrConflict
		}
		w, replayed = &next, moved
		return err
	})
	return w, replayed, err
}

// moveWebhook writes a webhook under its version: new entries and index rows before
// it, deletions of obsolete ones after it. It returns false after a lost race.
func (l *Ledger) moveWebhook(ctx context.Context, agg *statemachine.Aggregate, old, next *WebhookRow) (bool, error) {
	next.UpdatedAt, next.Seq = tablestore.Now(), old.Seq+1
	key := l.webhookKey(old.JobID, old.Index)
	var before, after tablestore.Stage
	if next.State == WebhookPending {
		before = append(before, tablestore.Batch{l.putWebhookEntry(agg.Job, next)})
	}
	if old.State == WebhookPending && (next.State != WebhookPending || next.entry() != old.entry()) {
		after = append(after, tablestore.Batch{l.discardEntry(old.JobID, old.entry())})
	}
	for _, key := range l.undeliveredKeys(old.TenantID, old.JobID, old.Index) {
		switch {
		case next.undelivered():
			listed := undeliveredCodec.Encode(next, nil)
			before = append(before, tablestore.Batch{{Verb: tablestore.Put, Key: key, Properties: listed}})
		case old.undelivered(): // Only as it is now: by then the webhook may have been abandoned again.
			row, err := l.store.Get(ctx, key)
			if err != nil && !errors.Is(err, tablestore.ErrNotFound) {
				return false, fmt.Errorf("read the undelivered webhook %s: %w", old.ID(), err)
			}
			if err == nil {
				after = append(after, tablestore.Batch{{Verb: tablestore.Delete, Key: key, ETag: row.ETag}})
			}
		}
	}
	applied, err := tablestore.Apply(ctx, l.store, tablestore.Change{
		Pre: stages(before),
		Commit: tablestore.Batch{{
			Verb: tablestore.Replace, Key: key, ETag: old.tag, Properties: webhookCodec.Encode(next, next.loaded),
		}},
		Post: stages(after),
	}, nil)
	if errors.Is(err, tablestore.ErrConflict) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("write webhook %s: %w", old.ID(), err)
	}
	next.tag = applied.ETags[key]
	return true, nil
}

// Undelivered returns one page of the abandoned webhooks, of one tenant or, if
// tenantID is empty, of all: those after the webhook with that id, or the first ones if
// it is empty. next is the id to continue after, empty at the end. It reads no rows of
// other tenants, and next is the id of none of theirs. Webhooks that cannot be read are left
// out, and bad joins their errors; the store's end the page.
func (l *Ledger) Undelivered(ctx context.Context, tenantID string, limit int, after string,
) (found []WebhookRow, next string, bad, err error) {
	query := tablestore.Query{Table: l.tables.Index, Partition: undeliveredOf(tenantID), Limit: limit}
	if query.From, err = l.undeliveredAfter(tenantID, after); err != nil {
		return nil, "", nil, err
	}
	for {
		page, err := l.page(ctx, query)
		if err != nil {
			return nil, "", nil, fmt.Errorf("read the undelivered webhooks: %w", err)
		}
		for i := range page.Rows {
			var listed WebhookRow
			if err := undeliveredCodec.Decode(&page.Rows[i], &listed); err != nil {
				bad = errors.Join(bad, err)
				continue
			}
			if page.Next != "" {
				next = listed.ID()
			}
			w, _, err := l.webhook(ctx, listed.JobID, listed.Index)
			if errors.Is(err, ErrJobNotFound) || err == nil && !w.undelivered() {
				continue
			}
			switch {
			case tablestore.IsOutage(err), ctx.Err() != nil:
				return nil, "", nil, err
			case err != nil:
				bad = errors.Join(bad, fmt.Errorf("webhook %s: %w", listed.ID(), err))
			default:
				found = append(found, *w)
			}
		}
		if query.From = page.Next; next != "" || page.Next == "" { // Else no row of the page can be read.
			return found, next, bad, nil
		}
	}
}

// undeliveredAfter returns the row after that of a webhook in a list, of the empty id the first.
func (l *Ledger) undeliveredAfter(tenantID, id string) (string, error) {
	if id == "" {
		return "", nil
	}
	jobID, index, err := ParseWebhookID(id)
	if err == nil {
		err = ParseJobID(jobID)
	}
	if err != nil {
		return "", &apierror.Error{
			Code: apierror.InvalidEnvelope, Err: err, Errors: []apierror.Violation{{Message: "page_token is invalid"}},
		}
	}
	return l.undeliveredKeys(tenantID, jobID, index)[0].Row + "\x00", nil
}
