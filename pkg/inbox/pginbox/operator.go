package pginbox

import (
	"cmp"
	"context"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/inbox"
)

// cursorTime is the format of times in cursors. It keeps the microseconds of PostgreSQL.
const cursorTime = time.RFC3339Nano

// cursorAfter returns the cursor after a command.
func cursorAfter(at time.Time, id string) string { return at.Format(cursorTime) + " " + id }

// parseCursor returns the position of the command after which a list continues, or the
// position before all commands if after is empty.
func parseCursor(after string) (at time.Time, id string, err error) {
	if after == "" {
		return time.Time{}, uuid.Nil.String(), nil
	}
	text, id, _ := strings.Cut(after, " ")
	if at, err = time.Parse(cursorTime, text); err != nil || !isUUID(id) {
		return at, "", apierror.Newf(apierror.InvalidEnvelope, "The cursor is invalid.")
	}
	return at, id, nil
}

// List implements [inbox.Operator].
func (i *Inbox) List(ctx context.Context, state inbox.State, limit int, after string) (page []inbox.Listed, next string, err error) {
	ctx, cancel := context.WithTimeout(ctx, i.timeout)
	defer cancel()
	from, id, err := parseCursor(after)
	if err != nil {
		return nil, "", err
	}
	rows, err := i.pool.Query(ctx, `SELECT id, tenant_id, command, submitted_by, submitted_at, tries, lease IS NOT NULL,
			state, due_at, decided_at, coalesce(problem, '{}'), coalesce(discard, '')
		FROM lucius.inbox WHERE state = $4 AND (submitted_at, id) > ($1, $2) ORDER BY submitted_at, id LIMIT $3`,
		from, id, limit+1, state)
	if err != nil {
		return nil, "", unavailable(err)
	}
	page, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (l inbox.Listed, err error) {
		var why fault
		var decided *time.Time
		err = row.Scan(&l.ID, &l.TenantID, &l.Body, &l.SubmittedBy, &l.SubmittedAt, &l.Tries, &l.Unsure,
			&l.State, &l.DueAt, &decided, &why, &l.DiscardReason)
		if decided != nil {
			l.RefusedAt = *decided
		}
		l.Discard = l.DiscardReason != ""
		l.Code, l.Detail, l.Errors = why.Code, why.Detail, why.Errors
		return l, err
	})
	if err != nil {
		return nil, "", unavailable(err)
	}
	if len(page) > limit {
		page = page[:limit]
		next = cursorAfter(page[limit-1].SubmittedAt, page[limit-1].ID)
	}
	return page, next, nil
}

// Retry implements [inbox.Operator].
func (i *Inbox) Retry(ctx context.Context, ids []string) ([]inbox.Handled, bool, error) {
	return i.handle(ctx, ids, inbox.Refused, `UPDATE lucius.inbox
		SET state = 'waiting', problem = NULL, decided_at = NULL, tries = 0, due_at = clock_timestamp()
		WHERE state = 'refused' AND id = ANY ($1::uuid[]) RETURNING id::text, 'retried', pg_notify('lucius_inbox', '')::text`)
}

// Discard implements [inbox.Operator].
func (i *Inbox) Discard(ctx context.Context, ids []string, state inbox.State, reason string) ([]inbox.Handled, bool, error) {
	return i.handle(ctx, ids, state, `WITH held AS MATERIALIZED (
			SELECT id FROM lucius.inbox WHERE state IN ('waiting', 'refused') AND id = ANY ($1::uuid[]) ORDER BY id FOR UPDATE
		) UPDATE lucius.inbox i SET discard = $2, state = CASE WHEN lease IS NULL THEN 'discarded' ELSE state END,
			problem = CASE WHEN lease IS NULL THEN `+lastProblem+` || jsonb_build_object('discarded', $2::text) ELSE problem END,
			command = CASE WHEN lease IS NOT NULL THEN command END,
			decided_at = CASE WHEN lease IS NULL THEN clock_timestamp() END
		FROM held WHERE i.id = held.id
		RETURNING i.id::text, CASE i.state WHEN 'discarded' THEN 'discarded' ELSE 'discarding' END, ''`,
		strings.ReplaceAll(reason, "\x00", ""))
}

// handle runs the statement on the commands with the ids, or on the first [inbox.MaxHandled]
// of the state. The statement returns the ids of the commands that it changed, and their
// outcomes.
func (i *Inbox) handle(ctx context.Context, ids []string, state inbox.State, statement string, args ...any,
) (handled []inbox.Handled, more bool, err error) {
	for _, id := range ids {
		if !isUUID(id) {
			return nil, false, apierror.Newf(apierror.InvalidEnvelope, "%q is not the id of a command.", id)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, i.timeout)
	defer cancel()
	_, err = i.pool.Commit(ctx, func(connection *pgxpool.Conn) error {
		return pgx.BeginFunc(ctx, connection, func(tx pgx.Tx) (err error) {
			handled, more, err = handleIn(ctx, tx, ids, state, statement, args)
			return err
		})
	})
	if err != nil {
		return nil, false, unavailable(err)
	}
	return handled, more, nil
}

// handleIn is handle in a transaction.
func handleIn(ctx context.Context, tx pgx.Tx, ids []string, state inbox.State, statement string, args []any,
) (handled []inbox.Handled, more bool, err error) {
	if len(ids) == 0 {
		if ids, err = first(ctx, tx, state, inbox.MaxHandled+1); err != nil {
			return nil, false, err
		}
		more = len(ids) > inbox.MaxHandled
		ids = ids[:min(len(ids), inbox.MaxHandled)]
	}
	rows, err := tx.Query(ctx, statement, append([]any{ids}, args...)...)
	if err != nil {
		return nil, false, err
	}
	done := map[string]inbox.HandledOutcome{}
	var id string
	var outcome inbox.HandledOutcome
	if _, err := pgx.ForEachRow(rows, []any{&id, &outcome, nil}, func() error { done[id] = outcome; return nil }); err != nil {
		return nil, false, err
	}
	for _, id := range ids {
		handled = append(handled, inbox.Handled{ID: id, Outcome: cmp.Or(done[strings.ToLower(id)], inbox.Absent)})
	}
	return handled, more, nil
}

// isUUID reports whether the text is a UUID with hyphens, as the database writes it.
func isUUID(text string) bool {
	return len(text) == len(uuid.Nil.String()) && uuid.Validate(text) == nil
}

// first returns the ids of the commands that were refused first or have waited longest. So
// that repeated calls reach all commands, one that is refused again comes last, and commands
// that a replica will discard are left out.
func first(ctx context.Context, tx pgx.Tx, state inbox.State, limit int) ([]string, error) {
	since := map[inbox.State]string{inbox.Waiting: "submitted_at", inbox.Refused: "decided_at"}[state]
	rows, err := tx.Query(ctx, "SELECT id::text FROM lucius.inbox WHERE state = $1 AND discard IS NULL "+
		"ORDER BY "+since+", id LIMIT $2", state, limit)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}
