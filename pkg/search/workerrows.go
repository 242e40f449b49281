package search

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

const (
	workersPartition = "workers"
	// workersInterval is the least time between two writes of the workers.
	workersInterval = 30 * time.Second
	// maxWorkerRows bounds the rows of a process, which are written in one batch. If the workers need
	// more, their oldest attempts are left out first, then the workers that have been idle longest.
	maxWorkerRows = 4
	// About how many characters a worker, and one of its attempts, takes in a row.
	workerChars  = 500
	attemptChars = 220
)

// workerHead is the first line of a row; each further line is a worker.
type workerHead struct {
	AsOf   time.Time `json:"as_of"`
	Walked time.Time `json:"walked,omitzero"` // when the process's last walk began
}

// due reports whether to store the workers: after a change, and otherwise once an hour, since polls
// are no change.
func (w *workers) due(now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	idle := now.Sub(w.stored)
	return w.dirty && idle >= workersInterval || len(w.known) > 0 && idle >= hour
}

// idle reports whether there is nothing to store.
func (w *workers) idle() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.known) == 0
}

// encode returns the text of each row, and how many rows of the last write to delete.
func (w *workers) encode(now time.Time) (rows [][]byte, surplus int, err error) {
	w.mu.Lock()
	all, walked, before := w.snapshot(), w.walked, w.rows
	w.dirty = false
	w.mu.Unlock()
	head, err := json.Marshal(workerHead{AsOf: now, Walked: walked})
	if err != nil {
		return nil, 0, fmt.Errorf("encode the workers: %w", err)
	}
	const room = maxWorkerRows * (tablestore.MaxBatchBytes/2/maxWorkerRows - 32<<10)
	attempts := max(0, (room/max(len(all), 1)-workerChars)/attemptChars)
	row := bytes.Clone(head)
	for i := range all {
		one := &all[i]
		one.Attempts = one.Attempts[max(0, len(one.Attempts)-attempts):]
		line, err := one.line(room/maxWorkerRows - len(head) - 2)
		if err != nil {
			return nil, 0, err
		}
		if len(row)+len(line) >= room/maxWorkerRows {
			if len(rows) == maxWorkerRows-1 {
				break
			}
			rows, row = append(rows, row), bytes.Clone(head)
		}
		row = append(append(row, '\n'), line...)
	}
	rows = append(rows, row)
	return rows, max(0, before-len(rows)), nil
}

// line encodes the worker. If that is longer than most bytes, it leaves out the older half of its
// attempts, as often as necessary.
func (w *Worker) line(most int) ([]byte, error) {
	for {
		line, err := json.Marshal(w)
		if err != nil {
			return nil, fmt.Errorf("encode the workers: %w", err)
		}
		if len(line) <= most || len(w.Held)+len(w.Attempts) == 0 {
			return line, nil
		}
		w.Held, w.Attempts = w.Held[(len(w.Held)+1)/2:], w.Attempts[(len(w.Attempts)+1)/2:]
	}
}

// snapshot returns copies of the workers, the latest active first. The caller holds mu.
func (w *workers) snapshot() []Worker {
	all := make([]Worker, 0, len(w.known))
	for _, one := range w.latest() {
		clone := *one
		clone.Held, clone.Attempts, clone.Hours = slices.Clone(one.Held), slices.Clone(one.Attempts), maps.Clone(one.Hours)
		all = append(all, clone)
	}
	return all
}

func (c *Counts) workersKey(n int) tablestore.Key {
	return tablestore.Key{
		Table: c.cfg.Table, Partition: workersPartition, Row: tablestore.Join(c.cfg.Replica, tablestore.Pad(int64(n), 2)),
	}
}

// storeWorkers writes the workers of this process.
func (c *Counts) storeWorkers(ctx context.Context) error {
	now := tablestore.Now()
	texts, surplus, err := c.workers.encode(now)
	if err != nil {
		return err
	}
	var batch tablestore.Batch
	for i, text := range texts {
		batch = append(batch, tablestore.Op{
			Verb: tablestore.Put, Key: c.workersKey(i), Properties: tablestore.AppendLarge(nil, countsColumn, text),
		})
	}
	for i := range surplus {
		batch = append(batch, tablestore.Op{Verb: tablestore.Discard, Key: c.workersKey(len(texts) + i)})
	}
	_, err = c.cfg.Store.Commit(ctx, batch)
	c.workers.mu.Lock()
	defer c.workers.mu.Unlock()
	if err != nil {
		c.workers.dirty = true
		return fmt.Errorf("store the workers: %w", err)
	}
	c.workers.stored, c.workers.rows = now, len(texts)
	return nil
}

// workerTable is a decoded row.
type workerTable struct {
	workerHead

	workers []Worker
}

// decodeWorkers decodes a row. It returns nil, and logs, if the row is not valid, such as that of
// another release.
func (c *Counts) decodeWorkers(ctx context.Context, row *tablestore.Row) *workerTable {
	found, work := new(workerTable), map[Work]*Work{}
	lines := json.NewDecoder(bytes.NewReader(tablestore.Large(row.Properties, countsColumn)))
	err := lines.Decode(&found.workerHead)
	for err == nil {
		var one Worker
		if err = lines.Decode(&one); err != nil {
			break
		}
		for _, attempts := range [][]Attempt{one.Held, one.Attempts} {
			for i := range attempts {
				of := *cmp.Or(attempts[i].Work, new(Work))
				if work[of] == nil {
					work[of] = &of
				}
				attempts[i].Work = work[of]
			}
		}
		found.workers = append(found.workers, one)
	}
	if !errors.Is(err, io.EOF) {
		c.cfg.Logger.WarnContext(ctx, "stored workers cannot be read", "row", row.Key.String(), "error", err)
		return nil
	}
	return found
}

// openWorkers restores the workers that the last process stored if the store is exclusive. Otherwise
// it deletes rows that are a day old: their processes have ended.
func (c *Counts) openWorkers(ctx context.Context) error {
	rows, err := tablestore.ScanAll(ctx, c.cfg.Store, tablestore.Query{Table: c.cfg.Table, Partition: workersPartition})
	if err != nil {
		return fmt.Errorf("read the workers: %w", err)
	}
	var gone tablestore.Batch
	for i := range rows {
		found := c.decodeWorkers(ctx, &rows[i])
		switch {
		case c.cfg.Exclusive && found != nil:
			c.workers.restore(found, len(rows))
		case found == nil || tablestore.Now().Sub(found.AsOf) > day:
			gone = append(gone, tablestore.Op{Verb: tablestore.Discard, Key: rows[i].Key})
		}
	}
	for some := range slices.Chunk(gone, tablestore.MaxBatchOps) {
		if _, err := c.cfg.Store.Commit(ctx, some); err != nil {
			return fmt.Errorf("delete the workers of ended processes: %w", err)
		}
	}
	return nil
}

// restore adds the workers of a row.
func (w *workers) restore(found *workerTable, rows int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range found.workers {
		w.known[found.workers[i].Owner] = &found.workers[i]
	}
	w.stored, w.rows = found.AsOf, rows
}

// othersKeep is how long the workers of other processes are cached.
const othersKeep = 5 * time.Second

// Workers returns the workers of the pull queue that were active in the last day, the latest first. It
// merges the records of all processes; those of other processes are up to 30 seconds old. Each
// worker has its last 50 attempts, the latest first. The caller owns the result, but not the [Work]
// of attempts.
func (c *Counts) Workers(ctx context.Context) ([]Worker, error) {
	c.workers.polled(c.pollers(), true)
	tables, err := c.otherWorkers(ctx)
	if err != nil {
		return nil, err
	}
	w := c.workers
	w.mu.Lock()
	own := &workerTable{workerHead{Walked: w.walked}, w.snapshot()}
	w.mu.Unlock()
	tables = append(tables, own, c.polledElsewhere())
	var walked time.Time // The latest walk knows every held attempt that was claimed before it began.
	for _, table := range tables {
		if table.Walked.After(walked) {
			walked = table.Walked
		}
	}
	sums := map[string]*Worker{}
	for _, table := range tables {
		for i := range table.workers {
			one := table.workers[i]
			stale := func(a Attempt) bool { return table.Walked.Before(walked) && a.Claimed.Before(walked) }
			one.Held = slices.DeleteFunc(slices.Clone(one.Held), stale)
			sum := sums[one.Owner]
			if sum == nil {
				sum = &Worker{Owner: one.Owner, Hours: map[int64]AttemptCounts{}}
				sums[one.Owner] = sum
			}
			sum.add(&one)
		}
	}
	all := make([]Worker, 0, len(sums))
	for _, sum := range slices.SortedFunc(maps.Values(sums), latestFirst) {
		sum.finish()
		if time.Since(sum.Last) <= day {
			all = append(all, *sum)
		}
	}
	return all, nil
}

// WorkersBytes estimates the memory that [Counts.Workers] takes.
func (c *Counts) WorkersBytes() int64 {
	const ofWorker, ofAttempt = 1 << 10, 128
	size := func(one *Worker) int64 { return ofWorker + ofAttempt*int64(len(one.Held)+len(one.Attempts)) }
	w, sum := c.workers, int64(0)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, one := range w.known {
		sum += 2 * size(one) // Workers copies the record under the lock, and again into the merged one.
	}
	for _, table := range w.others {
		for i := range table.workers {
			sum += size(&table.workers[i])
		}
	}
	return sum
}

// otherWorkers returns the workers that other processes have stored.
func (c *Counts) otherWorkers(ctx context.Context) ([]*workerTable, error) {
	w := c.workers
	if c.cfg.Exclusive {
		return nil, nil
	}
	w.mu.Lock()
	others, fresh := slices.Clone(w.others), time.Since(w.read) < othersKeep
	w.mu.Unlock()
	if fresh {
		return others, nil
	}
	rows, err := tablestore.ScanAll(ctx, c.cfg.Store, tablestore.Query{Table: c.cfg.Table, Partition: workersPartition})
	if err != nil {
		return nil, fmt.Errorf("read the workers: %w", err)
	}
	others = nil
	for i := range rows {
		if parts, err := tablestore.Split(rows[i].Key.Row); err != nil || parts[0] == c.cfg.Replica {
			continue
		}
		if found := c.decodeWorkers(ctx, &rows[i]); found != nil {
			others = append(others, found)
		}
	}
	w.mu.Lock()
	w.others, w.read = others, time.Now()
	w.mu.Unlock()
	return slices.Clone(others), nil
}

// polledElsewhere returns the workers that poll other processes. Polls are exchanged sooner than the
// stored records.
func (c *Counts) polledElsewhere() *workerTable {
	polls := newWorkers()
	c.mu.Lock()
	for _, other := range c.others {
		polls.polled(other.Pollers, tablestore.Now().Sub(other.AsOf) <= fresh)
	}
	c.mu.Unlock()
	return &workerTable{workers: polls.snapshot()}
}

// add merges the record of another process.
func (w *Worker) add(other *Worker) {
	if other.LastPoll.After(w.LastPoll) {
		w.LastPoll, w.Client, w.Tenants = other.LastPoll, other.Client, other.Tenants
		w.Services, w.StepTypes = other.Services, other.StepTypes
	}
	w.Waiting = w.Waiting || other.Waiting
	if other.Heartbeat.After(w.Heartbeat) {
		w.Heartbeat = other.Heartbeat
	}
	if other.Last.After(w.Last) {
		w.Last = other.Last
	}
	for at, counts := range other.Hours {
		counts.Add(w.Hours[at])
		w.Hours[at] = counts
	}
	w.Attempts = append(w.Attempts, other.Attempts...)
	for i := range other.Held {
		if held := &other.Held[i]; held.find(w.Held) < 0 {
			w.Held = append(w.Held, *held)
		}
	}
}

// finish drops held attempts that another process saw end, and sorts and bounds the lists.
func (w *Worker) finish() {
	w.Held = slices.DeleteFunc(w.Held, func(held Attempt) bool { return held.find(w.Attempts) >= 0 })
	slices.SortFunc(w.Held, func(a, b Attempt) int { return a.Claimed.Compare(b.Claimed) })
	slices.SortFunc(w.Attempts, func(a, b Attempt) int { return b.Ended.Compare(a.Ended) })
	w.Attempts = w.Attempts[:min(len(w.Attempts), maxAttempts)]
}
