// Package pginbox implements [inbox.Source] in PostgreSQL, with the table lucius.inbox.
// Package pgstore creates it, and the functions with which applications submit.
//
//	UPDATE lease, tries, due_at ──► accept ──► UPDATE state, job_id or problem WHERE lease is ours
//
// Each UPDATE is a transaction of one round trip, so that none is open during the accepts. The
// lease keeps other processes away until due_at, by when a process that has ended loses it.
package pginbox

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/inbox"
	"github.com/lucius-project/lucius/pkg/pgsession"
)

// Options configures an inbox.
type Options struct {
	// URL is the database, such as postgres://user:password@host:5432/database. Required.
	URL string
	// Table is the name of the ledger's table in lucius.rows. Required.
	Table string
	// MaxPayload is the limit of a payload in bytes, for [Inbox.Claim]. Optional. Defaults to
	// the limit that is stored.
	MaxPayload int
	// Timeout bounds each request. Optional. Defaults to 30 s.
	Timeout time.Duration
	// Lease is how long taken commands are kept from other processes. It also bounds their
	// accepts. Optional. Defaults to 30 s.
	Lease time.Duration
}

// Inbox stores the commands that applications submit. It is safe for concurrent use. It has
// its own connections, so that a busy store does not delay operators.
type Inbox struct {
	pool           *pgsession.Pool
	table          string
	maxPayload     int
	timeout, lease time.Duration
}

var _ inbox.Source = (*Inbox)(nil)

// Channel is the notification channel on which PostgreSQL reports submitted commands.
const Channel = "lucius_inbox"

const (
	// maxConnections allows one connection for taking commands, and two for operators and
	// background.
	maxConnections = 3
	// maxTakenBytes bounds the text of the commands that are taken at once. The last one
	// may exceed it.
	maxTakenBytes = 4 << 20
)

// Open returns the inbox of a database. It does not connect.
func Open(ctx context.Context, options Options) (*Inbox, error) {
	timeout := cmp.Or(options.Timeout, 30*time.Second)
	pool, err := pgsession.Open(ctx, pgsession.Options{URL: options.URL, Name: " inbox", Connections: maxConnections, Timeout: timeout})
	if err != nil {
		return nil, errors.New("the URL of PostgreSQL is invalid") // The cause may quote a password.
	}
	return &Inbox{
		pool: pool, table: options.Table, maxPayload: options.MaxPayload, timeout: timeout, lease: cmp.Or(options.Lease, 30*time.Second),
	}, nil
}

// Close closes the connections.
func (i *Inbox) Close() { i.pool.Close() }

// ErrUnusable is returned if this process must not take commands from the inbox.
var ErrUnusable = errors.New("the inbox cannot be used")

// Claim makes this ledger the owner of the inbox if it has none. Then it stores the limit of
// a payload, by which lucius.submit refuses commands. Its errors are those of [Inbox.Check].
func (i *Inbox) Claim(ctx context.Context) error {
	if err := i.Check(ctx); err != nil {
		return err
	}
	claiming, cancel := context.WithTimeout(ctx, i.timeout)
	defer cancel()
	if err := i.pool.Exec(claiming, "INSERT INTO lucius.inbox_owner (ledger) VALUES ($1) ON CONFLICT DO NOTHING", i.table); err != nil {
		return unavailable(err)
	}
	if err := i.Check(ctx); err != nil { // Another ledger may have been first.
		return err
	}
	err := i.pool.Exec(claiming, "UPDATE lucius.inbox_owner SET max_payload = $2 WHERE ledger = $1 AND max_payload <> $2 AND $2 > 0",
		i.table, i.maxPayload)
	if err != nil {
		return unavailable(err)
	}
	return nil
}

// Check returns an error that wraps [ErrUnusable] if the inbox belongs to another ledger, which
// may already have jobs for its commands. Package pgstore checks the rights of the role.
func (i *Inbox) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, i.timeout)
	defer cancel()
	var owner string
	err := i.pool.QueryRow(ctx, "SELECT coalesce((SELECT ledger FROM lucius.inbox_owner), '')").Scan(&owner)
	if err != nil {
		return unavailable(err)
	}
	if owner != "" && owner != i.table {
		return fmt.Errorf("%w: it belongs to the ledger %s, and LUCIUS_LEDGER_TABLE is %s: give this one a database of its own, "+
			"or DELETE FROM lucius.inbox_owner if the other is never served again", ErrUnusable, owner, i.table)
	}
	return nil
}

// unavailable returns the problem of a request that PostgreSQL did not answer, or whose commit
// a failover may lose.
func unavailable(err error) error {
	detail := "The inbox cannot be read."
	if errors.Is(err, pgsession.ErrUnreplicated) {
		detail = "The inbox did not confirm the change. Sending the request again is safe."
	}
	return &apierror.Error{Code: apierror.StoreUnavailable, Detail: detail, Err: fmt.Errorf("PostgreSQL: %w", err)}
}

// takeCommands leases commands. It first chooses candidates without locks: it walks the index
// from tenant to tenant, and orders the first command of each tenant before the second of any.
// It chooses more than it takes, because other processes may lock some. Commands to discard
// come first, even those of tenants to skip, because a limit does not concern them.
//
// Of the commands of a key, it leases one only together with all those before it that wait. The
// others are set behind, and no candidates until one before them is decided: the scan passes
// each once, however many there are. It locks the command before one that it sets behind,
// because a decision about that one in the meantime would not find it.
const takeCommands = `WITH RECURSIVE tenants (id) AS (
		(SELECT tenant_id FROM lucius.inbox WHERE state = 'waiting' AND NOT behind ORDER BY tenant_id LIMIT 1)
		UNION ALL
		SELECT (SELECT tenant_id FROM lucius.inbox WHERE state = 'waiting' AND NOT behind AND tenant_id > t.id ORDER BY tenant_id LIMIT 1)
			FROM tenants t WHERE t.id IS NOT NULL
	), candidates AS MATERIALIZED (
		(SELECT id, due_at, 0 AS turn FROM lucius.inbox
			WHERE state = 'waiting' AND discard IS NOT NULL AND due_at <= now() ORDER BY due_at LIMIT 4 * $1)
		UNION ALL
		(SELECT due.id, due.due_at, due.turn FROM tenants t CROSS JOIN LATERAL (
			SELECT id, due_at, row_number() OVER (ORDER BY due_at) AS turn FROM lucius.inbox
			WHERE state = 'waiting' AND NOT behind AND discard IS NULL AND tenant_id = t.id AND due_at <= now() ORDER BY due_at LIMIT $1
		) due WHERE t.id <> ALL ($2::text[]) ORDER BY due.turn, due.due_at LIMIT 4 * $1)
	), locked AS MATERIALIZED (
		SELECT i.id, i.tenant_id, i.order_key, i.number, c.due_at, c.turn, i.lease IS NOT NULL AS unsure,
			i.discard IS NOT NULL AS discard, octet_length(i.command) AS size
		FROM candidates c JOIN lucius.inbox i ON i.id = c.id
		WHERE i.state = 'waiting' AND i.due_at = c.due_at ORDER BY c.turn, c.due_at LIMIT $1 FOR UPDATE OF i SKIP LOCKED
	), batch AS MATERIALIZED (
		SELECT * FROM (SELECT *, sum(size) OVER (ORDER BY turn, due_at, id) - size AS bytes_before FROM locked) l WHERE bytes_before < $5
	), waiting AS MATERIALIZED (
		SELECT w.id, w.place FROM (SELECT DISTINCT tenant_id, order_key FROM batch WHERE order_key IS NOT NULL) k CROSS JOIN LATERAL (
			SELECT id, row_number() OVER (ORDER BY number) AS place FROM lucius.inbox
			WHERE state = 'waiting' AND tenant_id = k.tenant_id AND order_key = k.order_key ORDER BY number LIMIT $1
		) w
	), judged AS MATERIALIZED (
		SELECT b.*, b.order_key IS NULL OR b.discard OR coalesce(w.place = row_number() OVER line, false) AS takes,
			max(b.turn) OVER line AS order_turn, max(b.due_at) OVER line AS order_due
		FROM batch b LEFT JOIN waiting w ON w.id = b.id
		WINDOW line AS (PARTITION BY b.tenant_id, b.order_key, CASE WHEN b.order_key IS NULL THEN b.id END ORDER BY b.number)
	), behind AS MATERIALIZED (
		SELECT j.id FROM judged j CROSS JOIN LATERAL (
			SELECT id FROM lucius.inbox WHERE state = 'waiting' AND tenant_id = j.tenant_id AND order_key = j.order_key
				AND number < j.number ORDER BY number DESC LIMIT 1
		) before JOIN lucius.inbox i ON i.id = before.id WHERE NOT j.takes AND i.state = 'waiting' FOR SHARE OF i SKIP LOCKED
	), changed AS (
		UPDATE lucius.inbox i SET behind = NOT j.takes, tries = i.tries + j.takes::integer,
			lease = CASE WHEN j.takes THEN $3 ELSE i.lease END,
			due_at = CASE WHEN j.takes THEN clock_timestamp() + make_interval(secs => $4) ELSE i.due_at END
		FROM judged j WHERE i.id = j.id AND (j.takes OR j.id IN (SELECT id FROM behind))
		RETURNING i.id, i.tenant_id, coalesce(i.order_key, '') AS order_key, i.number, i.command, i.submitted_by, i.submitted_at,
			i.tries - 1 AS tries, j.unsure, j.discard, j.due_at, j.order_turn, j.order_due, i.behind
	) SELECT id, tenant_id, order_key, command, submitted_by, submitted_at, tries, unsure, discard, due_at, behind
		FROM changed ORDER BY order_turn, order_due, number, id`

// Take implements [inbox.Source].
func (i *Inbox) Take(ctx context.Context, limit int, skip []string, accept func(context.Context, []inbox.Command) []inbox.Outcome,
) (int, error) {
	lease := uuid.NewString()
	var taken []inbox.Command
	var places []time.Time
	var began time.Time
	for seen := 1; len(taken) == 0 && seen > 0; { // Others may be due after those that were set behind.
		var err error
		began = time.Now()
		if taken, places, seen, err = i.take(ctx, lease, limit, skip); err != nil {
			return 0, unavailable(err)
		}
	}
	if len(taken) == 0 {
		return 0, nil
	}
	accepting, cancel := context.WithDeadline(ctx, began.Add(i.lease)) // The lease began after that.
	defer cancel()
	outcomes := accept(accepting, taken)
	// Store the decisions even during a shutdown.
	if err := i.store(context.WithoutCancel(ctx), lease, taken, places, outcomes); err != nil {
		return 0, unavailable(err)
	}
	return len(taken), nil
}

// take leases commands. It returns them, and the times at which they were due, to which
// PutBack returns them. It also returns how many it took or set behind another.
func (i *Inbox) take(ctx context.Context, lease string, limit int, skip []string,
) (taken []inbox.Command, places []time.Time, seen int, err error) {
	ctx, cancel := context.WithTimeout(ctx, i.timeout)
	defer cancel()
	if skip == nil {
		skip = []string{}
	}
	_, err = i.pool.Commit(ctx, func(connection *pgxpool.Conn) error {
		rows, err := connection.Query(ctx, takeCommands, limit, skip, lease, i.lease.Seconds(), maxTakenBytes)
		if err != nil {
			return err
		}
		var c inbox.Command
		var place time.Time
		var behind bool
		_, err = pgx.ForEachRow(rows, []any{
			&c.ID, &c.TenantID, &c.OrderKey, &c.Body, &c.SubmittedBy, &c.SubmittedAt, &c.Tries, &c.Unsure, &c.Discard, &place, &behind,
		}, func() error {
			if seen++; !behind {
				taken, places = append(taken, c), append(places, place)
			}
			return nil
		})
		return err
	})
	return taken, places, seen, err
}

// storeOutcomes stores the outcomes. A command that is known not to be a job is discarded if
// an operator has asked for that. If the command may be a job, the lease stays and says so.
// Rows are locked in the order of their ids, as in operators' statements, to avoid deadlocks.
const storeOutcomes = `WITH held AS MATERIALIZED (
		SELECT id FROM lucius.inbox WHERE id = ANY ($1::uuid[]) AND lease = $8 ORDER BY id FOR UPDATE
	) UPDATE lucius.inbox i SET job_id = o.job, lease = CASE WHEN o.unsure THEN i.lease END,
		state = CASE WHEN ` + endsNow + ` THEN 'discarded' ELSE o.state END,
		problem = CASE WHEN ` + endsNow + ` THEN ` + lastProblem + ` || jsonb_build_object('discarded', i.discard)
			WHEN o.state = 'waiting' THEN coalesce(o.problem::jsonb, i.problem) ELSE o.problem::jsonb END,
		command = CASE WHEN NOT ` + endsNow + ` AND o.state <> 'accepted' THEN i.command END,
		decided_at = CASE WHEN ` + endsNow + ` OR o.state <> 'waiting' THEN clock_timestamp() END,
		due_at = coalesce(o.place, clock_timestamp() + make_interval(secs => o.wait)),
		tries = CASE WHEN o.place IS NULL THEN i.tries ELSE i.tries - 1 END
	FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::timestamptz[], $6::float8[], $7::bool[])
		AS o(id, state, job, problem, place, wait, unsure), held
	WHERE i.id = o.id AND i.id = held.id`

const (
	// endsNow says that the command is discarded.
	endsNow = "(i.discard IS NOT NULL AND o.state <> 'accepted' AND NOT o.unsure)"
	// lastProblem is the problem of a command, without a code if it was never tried.
	lastProblem = `coalesce(i.problem, '{"code": "", "detail": ""}')`
)

// store stores the outcomes of the commands that this lease still holds.
func (i *Inbox) store(ctx context.Context, lease string, taken []inbox.Command, places []time.Time, outcomes []inbox.Outcome) error {
	ctx, cancel := context.WithTimeout(ctx, i.timeout)
	defer cancel()
	var ids, states []string
	var jobs, problems []*string
	var due []*time.Time
	var waits []float64
	var unsure []bool
	for at := range taken {
		outcome := &outcomes[at]
		state, job := "accepted", &outcome.JobID
		var fault *string
		if outcome.Problem != nil {
			text, err := encode(outcome.Problem)
			if err != nil {
				return err
			}
			state, job, fault = "refused", nil, &text
		}
		var place *time.Time
		if outcome.PutBack {
			place = &places[at]
		}
		if outcome.Wait > 0 || outcome.PutBack {
			state, job = "waiting", nil
		}
		ids, states, jobs, problems = append(ids, taken[at].ID), append(states, state), append(jobs, job), append(problems, fault)
		due, waits = append(due, place), append(waits, outcome.Wait.Seconds())
		unsure = append(unsure, outcome.Unsure)
	}
	return i.pool.Exec(ctx, storeOutcomes, ids, states, jobs, problems, due, waits, unsure, lease)
}

// fault is the stored form of a problem.
type fault struct {
	Code   apierror.Code        `json:"code"`
	Detail string               `json:"detail"`
	Errors []apierror.Violation `json:"errors,omitempty"`
}

func encode(p *apierror.Error) (string, error) {
	text, err := json.Marshal(fault{Code: p.Code, Detail: cmp.Or(p.Summary(), p.Code.Title()+"."), Errors: p.Errors})
	if err != nil {
		return "", fmt.Errorf("encode a problem: %w", err)
	}
	return strings.ReplaceAll(string(text), `\u0000`, `\ufffd`), nil // jsonb cannot hold a NUL.
}

// Survey implements [inbox.Operator].
func (i *Inbox) Survey(ctx context.Context) (s inbox.Survey, err error) {
	ctx, cancel := context.WithTimeout(ctx, i.timeout)
	defer cancel()
	var waiting, refused *time.Time
	err = i.pool.QueryRow(ctx, `SELECT
		(SELECT count(*) FROM (SELECT FROM lucius.inbox WHERE state = 'waiting' LIMIT $1) w),
		(SELECT count(*) FROM (SELECT FROM lucius.inbox WHERE state = 'refused' LIMIT $1) r),
		(SELECT submitted_at FROM lucius.inbox WHERE state = 'waiting' ORDER BY submitted_at, id LIMIT 1),
		(SELECT submitted_at FROM lucius.inbox WHERE state = 'refused' ORDER BY submitted_at, id LIMIT 1)`,
		inbox.MaxSurveyed).Scan(&s.Waiting, &s.Refused, &waiting, &refused)
	if err != nil {
		return s, unavailable(err)
	}
	if waiting != nil {
		s.OldestWaiting = *waiting
	}
	if refused != nil {
		s.OldestRefused = *refused
	}
	return s, nil
}

// maxForget is the most commands that one call of Forget checks.
const maxForget = 1000

// Forget implements [inbox.Source]. It skips commands that another process is deleting. It locks
// only what it deletes, because a lock writes the row.
func (i *Inbox) Forget(ctx context.Context, after string, retention time.Duration) (next string, deleted int, err error) {
	ctx, cancel := context.WithTimeout(ctx, i.timeout)
	defer cancel()
	from, id, err := parseCursor(after)
	if err != nil {
		return "", 0, err
	}
	var seen int
	var last *time.Time
	var lastID *string
	err = i.pool.QueryRow(ctx, `WITH seen AS MATERIALIZED (
			SELECT id, state, job_id, decided_at FROM lucius.inbox WHERE state IN ('accepted', 'discarded')
				AND (decided_at, id) > ($1, $2) AND decided_at < now() - make_interval(secs => $3)
			ORDER BY decided_at, id LIMIT $4
		), locked AS MATERIALIZED (
			SELECT i.id FROM seen s JOIN lucius.inbox i ON i.id = s.id WHERE s.state = 'discarded' OR NOT EXISTS (
				SELECT FROM lucius.rows r WHERE r.tbl = $5 AND r.part = s.job_id AND r.row = 'JOB' AND r.props ? 'state')
			FOR UPDATE OF i SKIP LOCKED
		), gone AS (
			DELETE FROM lucius.inbox i USING locked l WHERE i.id = l.id RETURNING i.id
		), latest AS (SELECT decided_at, id FROM seen ORDER BY decided_at DESC, id DESC LIMIT 1)
		SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM seen), (SELECT decided_at FROM latest), (SELECT id FROM latest)`,
		from, id, retention.Seconds(), maxForget, i.table).Scan(&deleted, &seen, &last, &lastID)
	if err != nil {
		return after, 0, unavailable(err)
	}
	if seen == maxForget {
		next = cursorAfter(*last, *lastID)
	}
	return next, deleted, nil
}
