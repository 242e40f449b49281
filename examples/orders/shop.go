package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5"

	lucius "github.com/lucius-project/lucius/sdk/go"
)

// tenant is the tenant of the shop's commands.
const tenant = "shop"

// tables creates the shop's tables, and grants its role the right to submit. Numbers of
// rolled-back orders are not used again.
const tables = `CREATE TABLE IF NOT EXISTS orders (number bigserial PRIMARY KEY, command_id uuid NOT NULL UNIQUE);
	INSERT INTO lucius.inbox_rights (role, tenant_id) VALUES (session_user, '` + tenant + `') ON CONFLICT DO NOTHING`

// sell takes orders until it is killed. Every second customer changes their mind.
func sell(ctx context.Context, database string) error {
	connection, err := pgx.Connect(ctx, database)
	if err != nil {
		return err
	}
	defer func() { _ = connection.Close(context.WithoutCancel(ctx)) }() // Nothing is lost with it.
	if _, err := connection.Exec(ctx, tables); err != nil {
		return err
	}
	for customer := 0; err == nil; customer++ {
		err = order(ctx, connection, customer%2 == 0)
	}
	return err
}

// order stores an order and submits its command in one transaction.
func order(ctx context.Context, connection *pgx.Conn, commit bool) error {
	tx, err := connection.Begin(ctx)
	if err != nil {
		return err
	}
	id, err := lucius.SubmitTx(ctx, tx.QueryRow, lucius.Command{
		TenantID: tenant, RequestType: "doc.ingest", SchemaVersion: "1", Payload: map[string]string{"language": "en"},
		InputRef: lucius.URI("s3://orders/in"), OutputRef: lucius.URI("s3://orders/out"),
	})
	if err == nil {
		_, err = tx.Exec(ctx, "INSERT INTO orders (command_id) VALUES ($1)", id)
	}
	if err != nil || !commit {
		return errors.Join(err, tx.Rollback(ctx))
	}
	return tx.Commit(ctx)
}

// count counts the rows of a query.
func count(ctx context.Context, connection *pgx.Conn, query string) (found int, err error) {
	err = connection.QueryRow(ctx, "SELECT count(*) "+query).Scan(&found)
	return found, err
}

const (
	// patience is how long a report waits until all commands are accepted.
	patience = 10 * time.Minute
	// look is the pause between two checks.
	look = 20 * time.Millisecond
)

// report prints how many orders and jobs there are once no command waits. It returns an error
// unless each order has its own job, and there is no other job.
func report(ctx context.Context, database string, out io.Writer) error {
	connection, err := pgx.Connect(ctx, database)
	if err != nil {
		return err
	}
	defer func() { _ = connection.Close(context.WithoutCancel(ctx)) }() // Nothing is lost with it.
	// A transaction of an application that was killed may still commit. It holds its lock until then.
	if _, err := connection.Exec(ctx, "BEGIN; LOCK TABLE orders IN SHARE MODE; COMMIT"); err != nil {
		return err
	}
	for began := time.Now(); ; {
		waiting, err := count(ctx, connection, "FROM lucius.inbox WHERE state = 'waiting'")
		if err != nil {
			return err
		}
		if waiting == 0 {
			break
		}
		if time.Since(began) > patience {
			return fmt.Errorf("%d commands still wait after %s: does a server run?", waiting, patience)
		}
		time.Sleep(look)
	}
	var found [5]int
	err = connection.QueryRow(ctx, `WITH ordered AS MATERIALIZED (
			SELECT o.number, r.job_id FROM orders o LEFT JOIN LATERAL lucius.result(o.command_id) r ON true
		) SELECT (SELECT count(*) FROM ordered), (SELECT last_value FROM orders_number_seq), (SELECT count(*) FROM lucius.jobs),
			(SELECT count(*) FROM ordered o FULL JOIN lucius.jobs j ON j.job_id = o.job_id WHERE o.number IS NULL OR j.job_id IS NULL),
			(SELECT count(job_id) - count(DISTINCT job_id) FROM ordered)`).Scan(&found[0], &found[1], &found[2], &found[3], &found[4])
	if err != nil {
		return err
	}
	orders, numbers, jobs, alone, shared := found[0], found[1], found[2], found[3], found[4]
	fmt.Fprintf(out, "%6d orders committed\n%6d rolled back, or cut off by a kill\n%6d jobs\n", orders, numbers-orders, jobs)
	if alone > 0 || shared > 0 {
		return fmt.Errorf("%d orders without a job or jobs without an order, and %d orders that share a job", alone, shared)
	}
	fmt.Fprintln(out, "Each order has its own job, and there is no other job.")
	return nil
}
