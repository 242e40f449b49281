// Package linearizability checks that a table store is linearizable: that each
// call takes effect at one instant between its beginning and its end, as if
// there were only one client. Clients work concurrently on few rows, and
// porcupine searches for an order of their calls that explains every answer.
//
//	clients ──► store            history: call, answer, when
//	                                  │
//	                                  ▼
//	            model of a partition: rows, each absent or with its last write
//
// A write with unknown outcome may or may not have been applied, and may yet
// be: in the history it never ends, so it can take effect at any time or never.
// A batch is one call on one partition. A search that does not end within its
// time limit proves nothing and fails the test.
package linearizability

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// Config configures [Check].
type Config struct {
	// Store is the store, with an empty table. Required.
	Store tablestore.Store
	// Table is that table. Required.
	Table string
	// Clients work concurrently, each with that many Calls. Optional. Default
	// to 8 and 60.
	Clients int
	Calls   int
	// Partitions is how many partitions they share. Optional. Defaults to 2.
	Partitions int
	// Seed determines the clients' calls, but not how they interleave.
	// Optional.
	Seed uint64
	// Patience bounds the search for an order. Optional. Defaults to a minute.
	Patience time.Duration
}

// withDefaults fills in what is not set.
func (c Config) withDefaults() Config {
	if c.Clients == 0 {
		c.Clients = 8
	}
	if c.Calls == 0 {
		c.Calls = 60
	}
	if c.Partitions == 0 {
		c.Partitions = 2
	}
	if c.Patience == 0 {
		c.Patience = time.Minute
	}
	return c
}

// Check runs the clients on the store, and fails the test unless their history
// is linearizable.
func Check(t testing.TB, config Config) {
	t.Helper()
	if err := explain(t.Context(), config); err != nil {
		t.Error(err)
	}
}

// explain returns an error unless some order of the calls explains all answers.
func explain(ctx context.Context, config Config) error {
	config = config.withDefaults()
	history, err := record(ctx, &config)
	if err != nil {
		return err
	}
	// An order may leave out a call with unknown outcome. The search is short
	// without those calls whose writes were never read, and includes them only
	// if it finds no order.
	if porcupine.CheckOperationsTimeout(model(), withTraces(history), config.Patience) == porcupine.Ok {
		return nil
	}
	result, info := porcupine.CheckOperationsVerbose(model(), history, config.Patience)
	switch result {
	case porcupine.Ok:
		return nil
	case porcupine.Unknown:
		return fmt.Errorf("no order of %d calls was found or ruled out within %s", len(history), config.Patience)
	default:
		return fmt.Errorf("seed %d: no order of %d calls explains the answers; the longest that does ends before\n%s",
			config.Seed, len(history), firstUnexplained(history, &info))
	}
}

// withTraces leaves out the calls with unknown outcome whose writes were never
// read.
func withTraces(history []porcupine.Operation) []porcupine.Operation {
	seen := map[int64]bool{}
	for i := range history {
		a := history[i].Output.(answer)
		for _, number := range a.seen {
			seen[number] = true
		}
		if a.outcome == done {
			for _, w := range history[i].Input.(call).writes {
				seen[w.expected] = true
			}
		}
	}
	delete(seen, 0)
	return slices.DeleteFunc(slices.Clone(history), func(o porcupine.Operation) bool {
		return o.Output.(answer).outcome == unknown &&
			!slices.ContainsFunc(o.Input.(call).writes, func(w write) bool { return seen[w.number] })
	})
}

// firstUnexplained lists the calls at the end of each partition's longest
// order.
func firstUnexplained(history []porcupine.Operation, info *porcupine.LinearizationInfo) string {
	var text strings.Builder
	for n, orders := range info.PartialLinearizations() {
		longest := []int(nil)
		for _, order := range orders {
			if len(order) > len(longest) {
				longest = order
			}
		}
		calls := byPartition(history)[n]
		if len(longest) == len(calls) {
			continue
		}
		for i, operation := range calls {
			if !slices.Contains(longest, i) {
				fmt.Fprintf(&text, "  partition %d, client %d: %s\n", n, operation.ClientId,
					describe(operation.Input.(call), operation.Output.(answer)))
			}
		}
	}
	return text.String()
}

// record runs the clients and returns their calls and answers with their times.
func record(ctx context.Context, config *Config) ([]porcupine.Operation, error) {
	var (
		group   sync.WaitGroup
		mu      sync.Mutex
		history []porcupine.Operation
		errs    []error
		numbers atomic.Int64
		start   = time.Now()
	)
	for id := range config.Clients {
		c := &client{
			id: id, config: config, numbers: &numbers, start: start, known: map[place]version{},
			rng: rand.New(rand.NewPCG(config.Seed, uint64(id))), //nolint:gosec // Random choices of a test.
		}
		group.Go(func() {
			calls, err := c.work(ctx)
			mu.Lock()
			defer mu.Unlock()
			history, errs = append(history, calls...), append(errs, err)
		})
	}
	group.Wait()
	return history, errors.Join(errs...)
}

// client is one client of the store.
type client struct {
	id      int
	config  *Config
	numbers *atomic.Int64
	start   time.Time
	rng     *rand.Rand
	known   map[place]version // the last version that it saw
}

type place struct{ partition, row int }

// version is a row as a client saw it.
type version struct {
	tag    tablestore.ETag
	number int64
}

// never is the end of a call with unknown outcome.
const never = math.MaxInt64

// work makes the client's calls, one after the other.
func (c *client) work(ctx context.Context) ([]porcupine.Operation, error) {
	var history []porcupine.Operation
	for range c.config.Calls {
		asked := c.choose()
		began := int64(time.Since(c.start))
		answered, err := c.carryOut(ctx, &asked)
		ended := int64(time.Since(c.start))
		if err != nil {
			return nil, err
		}
		if answered.outcome == unknown {
			ended = never
		}
		history = append(history, porcupine.Operation{
			ClientId: c.id, Input: asked, Call: began, Output: answered, Return: ended,
		})
	}
	return history, nil
}

// choose picks a random call; about half are reads.
func (c *client) choose() call {
	asked := call{partition: c.rng.IntN(c.config.Partitions), row: c.rng.IntN(rowCount+1) - 1}
	if c.rng.IntN(2) == 0 {
		return asked
	}
	rows := c.rng.Perm(rowCount)[:1+c.rng.IntN(2)]
	for _, row := range rows {
		asked.writes = append(asked.writes, c.chooseWrite(asked.partition, row, len(rows) == 1))
	}
	return asked
}

// chooseWrite picks a random op. Most are conditional on the version that the
// client saw last. Only a batch of one op discards: in larger batches a driver
// may leave a row that was inserted in between, as the port allows for hints.
func (c *client) chooseWrite(part, row int, alone bool) write {
	w := write{row: row, number: c.numbers.Add(1), verb: tablestore.Put}
	seen := c.known[place{part, row}]
	switch n := c.rng.IntN(10); {
	case n < 6 && seen.tag != "":
		w.verb, w.expected = tablestore.Replace, seen.number
	case n < 7 && seen.tag != "":
		w.verb, w.expected = tablestore.Delete, seen.number
	case n < 8:
		w.verb = tablestore.Insert
	case n < 9 && alone:
		w.verb = tablestore.Discard
	}
	return w
}

// key returns the key of a row.
func (c *client) key(at place) tablestore.Key {
	return tablestore.Key{
		Table: c.config.Table, Partition: "p" + strconv.Itoa(at.partition), Row: "r" + strconv.Itoa(at.row),
	}
}

// carryOut makes the call.
func (c *client) carryOut(ctx context.Context, asked *call) (answer, error) {
	switch {
	case len(asked.writes) > 0:
		return c.commit(ctx, asked)
	case asked.row < 0:
		return c.scan(ctx, asked)
	}
	at := place{asked.partition, asked.row}
	row, err := c.config.Store.Get(ctx, c.key(at))
	if errors.Is(err, tablestore.ErrNotFound) {
		delete(c.known, at)
		return answer{outcome: done}, nil
	}
	a, err := outcomeOf(err)
	if a.outcome == done {
		a.seen[asked.row] = c.learn(at, &row)
	}
	return a, err
}

// learn records a row that was read, and returns its number.
func (c *client) learn(at place, row *tablestore.Row) int64 {
	number := row.Properties.Get("n").Int()
	c.known[at] = version{row.ETag, number}
	return number
}

// scan reads the partition as one page.
func (c *client) scan(ctx context.Context, asked *call) (answer, error) {
	page, err := c.config.Store.Scan(ctx, tablestore.Query{
		Table: c.config.Table, Partition: c.key(place{asked.partition, 0}).Partition,
	})
	a, err := outcomeOf(err)
	if a.outcome != done {
		return a, err
	}
	for row := range rowCount {
		delete(c.known, place{asked.partition, row})
	}
	for i := range page.Rows {
		row, err := strconv.Atoi(page.Rows[i].Key.Row[1:])
		if err != nil {
			return a, fmt.Errorf("a row that no client wrote: %w", err)
		}
		a.seen[row] = c.learn(place{asked.partition, row}, &page.Rows[i])
	}
	return a, nil
}

// commit writes the batch.
func (c *client) commit(ctx context.Context, asked *call) (answer, error) {
	var batch tablestore.Batch
	for _, w := range asked.writes {
		at := place{asked.partition, w.row}
		op := tablestore.Op{Verb: w.verb, Key: c.key(at)}
		if w.expected != 0 {
			op.ETag = c.known[at].tag
		}
		if w.verb != tablestore.Delete && w.verb != tablestore.Discard {
			op.Properties = tablestore.Properties{{Name: "n", Value: tablestore.Int(w.number)}}
		}
		batch = append(batch, op)
	}
	tags, err := c.config.Store.Commit(ctx, batch)
	for i, w := range asked.writes {
		at := place{asked.partition, w.row}
		delete(c.known, at)
		if err == nil && tags[i] != "" {
			c.known[at] = version{tags[i], w.number}
		}
	}
	return outcomeOf(err)
}

// outcomeOf converts an error to the port's outcome; an error outside the
// port's is returned.
func outcomeOf(err error) (answer, error) {
	lost := errors.Is(err, tablestore.ErrConflict)
	switch {
	case err == nil:
		return answer{outcome: done}, nil
	case lost:
		return answer{outcome: conflict}, nil
	case errors.Is(err, tablestore.ErrUnknown):
		return answer{outcome: unknown}, nil
	case errors.Is(err, tablestore.ErrUnavailable):
		return answer{outcome: notTaken}, nil
	default:
		return answer{}, fmt.Errorf("no outcome of the port: %w", err)
	}
}

// Flaky wraps a store so that some of its writes have an unknown outcome: the
// write is applied and the reply lost, or it is never applied, or it is applied
// later. Close waits for late writes.
func Flaky(store tablestore.Store, seed uint64) tablestore.Store {
	return &flaky{Store: store, rng: rand.New(rand.NewPCG(seed, 1))} //nolint:gosec // Random choices of a test.
}

type flaky struct {
	tablestore.Store
	mu   sync.Mutex
	rng  *rand.Rand
	late sync.WaitGroup
}

// random returns a random number below n.
func (f *flaky) random(n int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rng.IntN(n)
}

func (f *flaky) Commit(ctx context.Context, batch tablestore.Batch) ([]tablestore.ETag, error) {
	switch f.random(40) {
	case 0:
		_, err := f.Store.Commit(ctx, batch)
		if errors.Is(err, tablestore.ErrConflict) || err == nil {
			return nil, tablestore.ErrUnknown
		}
		return nil, err
	case 1:
		return nil, tablestore.ErrUnknown
	case 2:
		delay := time.Duration(f.random(2000)) * time.Microsecond
		f.late.Go(func() {
			time.Sleep(delay)
			_, _ = f.Store.Commit(context.WithoutCancel(ctx), batch) // The client never gets the result.
		})
		return nil, tablestore.ErrUnknown
	case 3:
		return nil, tablestore.ErrUnavailable
	}
	return f.Store.Commit(ctx, batch)
}

func (f *flaky) Close() error {
	f.late.Wait()
	return f.Store.Close()
}
