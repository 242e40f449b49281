package census

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/workqueue"
)

const (
	partition  = "census"
	rowBase    = "base"
	rowReplica = "replica"
	column     = "sheet"
	// silence is the age at which the sheet of a process that no longer stores it is merged
	// into the base. Its events are then older than the windows.
	silence = 2 * time.Hour
	// freshSheet is the most age of a sheet whose workers may still wait: a process that is
	// polled stores its sheet in each interval.
	freshSheet = 30 * time.Second
	// maxPollers bounds the pollers on a stored sheet.
	maxPollers = 500
	// maxSheetChars bounds the characters of a stored sheet, which take two bytes each. A
	// longer sheet loses its durations and the precision of its ages, then its pollers.
	maxSheetChars = tablestore.MaxRowBytes/2 - 16<<10
)

func (c *Census) key(parts ...string) tablestore.Key {
	return tablestore.Key{Table: c.cfg.Table, Partition: partition, Row: tablestore.Join(parts...)}
}

// Open reads the stored counts. If the store is exclusive, the last process has stored them,
// and they are exact after an orderly stop. The error is the store's.
func (c *Census) Open(ctx context.Context) error {
	if !c.cfg.Exclusive {
		return c.read(ctx)
	}
	row, err := c.cfg.Store.Get(ctx, c.key(rowReplica, c.cfg.Replica))
	if errors.Is(err, tablestore.ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open the census: %w", err)
	}
	stored := c.sheetOf(ctx, &row)
	c.mu.Lock()
	c.own, c.exact, c.asOf = stored, stored.Complete, stored.AsOf
	c.own.Pollers = nil
	if !stored.Whole {
		c.own.lose(tablestore.Now())
	}
	c.mu.Unlock()
	return c.store(ctx, false) // After a crash, the row must not count as exact.
}

// pollers returns the workers that poll this process, the most recent first.
func (c *Census) pollers() []workqueue.Poller {
	if c.cfg.Queue == nil {
		return nil
	}
	return c.cfg.Queue.Pollers()
}

// RunOnce stores the own sheet if it has changed, and reads those of other processes. It
// also stores an unchanged sheet in time to keep others from merging it into the base.
func (c *Census) RunOnce(ctx context.Context) error {
	pollers := c.pollers()
	c.mu.Lock()
	dirty := c.dirty || !c.cfg.Exclusive && (len(pollers) > 0 && pollers[0].LastPoll.After(c.own.AsOf) ||
		c.stored != nil && time.Since(c.own.AsOf) > silence/4)
	c.mu.Unlock()
	if dirty {
		if err := c.store(ctx, false); err != nil {
			return err
		}
	}
	if c.cfg.Exclusive {
		return nil
	}
	return c.read(ctx)
}

// Close stores the own sheet for the next start. orderly says that this process will change
// no further job.
func (c *Census) Close(ctx context.Context, orderly bool) error { return c.store(ctx, orderly) }

// store writes the own sheet under its ETag, so that an earlier write that lands late fails.
// orderly says that the sheet will miss no event until the next start. If the row is
// gone, another process has merged it into the base while this one was suspended, so store
// subtracts what it held.
func (c *Census) store(ctx context.Context, orderly bool) error {
	var pollers, polls []workqueue.Poller
	if !c.cfg.Exclusive && c.cfg.Queue != nil {
		pollers, polls = c.pollers(), c.cfg.Queue.LastPolls()
	}
	pollers = pollers[:min(len(pollers), maxPollers)]
	select {
	case c.storing <- struct{}{}:
		defer func() { <-c.storing }()
	case <-ctx.Done():
		return fmt.Errorf("store the census: %w", ctx.Err())
	}
	key := c.key(rowReplica, c.cfg.Replica)
	var data tablestore.Properties
	err := tablestore.Update(ctx, c.cfg.Store, key, c.cfg.Random, func(row *tablestore.Row) (_ tablestore.Properties, err error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if row.ETag != "" {
			c.stored = row
		} else if c.stored != nil {
			merged, err := decode(c.stored)
			if err != nil {
				return nil, err
			}
			c.own.subtract(merged)
			c.stored = nil
		}
		c.dirty = false
		c.own.AsOf, c.own.Complete, c.own.Pollers = tablestore.Now(), orderly && c.exact, pollers
		c.own.Whole, c.own.Polls = orderly, polls
		c.own.prune(c.own.AsOf)
		data, err = encode(c.own)
		return data, err
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.dirty = true
		return fmt.Errorf("store the census: %w", err)
	}
	c.stored = &tablestore.Row{Key: key, Properties: data}
	return nil
}

// read reads the base and the sheets of the other processes. It merges sheets that have not
// been stored for two hours into the base.
func (c *Census) read(ctx context.Context) error {
	rows, err := tablestore.ScanAll(ctx, c.cfg.Store, tablestore.Query{Table: c.cfg.Table, Partition: partition})
	if err != nil {
		return fmt.Errorf("read the census: %w", err)
	}
	base, kept := newSheet(tablestore.Now()), tablestore.Row{}
	var others, silent []*sheet
	var gone tablestore.Batch
	c.mu.Lock()
	before := c.known
	c.mu.Unlock()
	known, own := map[tablestore.Key]readSheet{}, c.key(rowReplica, c.cfg.Replica)
	for i := range rows {
		key := rows[i].Key
		if key == own {
			continue
		}
		one := before[key].at(rows[i].ETag)
		if one == nil {
			one = c.sheetOf(ctx, &rows[i])
		}
		known[key] = readSheet{rows[i].ETag, one}
		switch {
		case key == c.key(rowBase):
			base, kept = one, rows[i]
		case time.Since(one.AsOf) > silence && len(gone) < tablestore.MaxBatchOps-1:
			silent = append(silent, one)
			gone = append(gone, tablestore.Op{Verb: tablestore.Delete, Key: key, ETag: rows[i].ETag})
		default:
			others = append(others, one)
		}
	}
	if len(silent) > 0 {
		if kept.ETag != "" {
			base = c.sheetOf(ctx, &kept) // a copy, because reports read the known sheet
		}
		for _, one := range silent {
			base.add(one)
			base.lose(one.crashed(tablestore.Now()))
		}
		base.prune(tablestore.Now())
		err = c.storeMerged(ctx, base, &kept, gone)
	}
	var polls []workqueue.Poller
	for _, other := range others {
		polls = append(polls, other.Polls...)
	}
	if c.cfg.Queue != nil {
		c.cfg.Queue.PolledElsewhere(polls)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.base, c.others, c.known = base, others, known
	return err
}

// readSheet is a sheet as it was read. The next exchange uses it again if its row is the
// same, as most are.
type readSheet struct {
	etag  tablestore.ETag
	sheet *sheet
}

// at returns the sheet if its row still has that ETag, otherwise nil.
func (r readSheet) at(etag tablestore.ETag) *sheet {
	if r.etag != etag {
		return nil
	}
	return r.sheet
}

// storeMerged stores the base with the silent sheets in it and deletes their rows, unless
// another process has done so.
func (c *Census) storeMerged(ctx context.Context, base *sheet, kept *tablestore.Row, gone tablestore.Batch) error {
	data, err := encode(base)
	if err != nil {
		return err
	}
	op := tablestore.Op{Verb: tablestore.Insert, Key: c.key(rowBase), Properties: data}
	if kept.ETag != "" {
		op.Verb, op.ETag = tablestore.Replace, kept.ETag
	}
	_, err = c.cfg.Store.Commit(ctx, append(gone, op))
	if err != nil && !errors.Is(err, tablestore.ErrConflict) {
		return fmt.Errorf("merge silent sheets into the base of the census: %w", err)
	}
	return nil
}

// End ends a walk that has read all live jobs. If the store is exclusive, the own sheet takes
// over the walk's count, which includes the commits since it began. Otherwise the count makes
// a new base, on the assumption that the walk saw half of the changes that other processes
// made during it.
func (c *Census) End(ctx context.Context) error {
	c.mu.Lock()
	if c.count == nil || c.cfg.Exclusive {
		if c.count != nil {
			c.own.Live, c.exact, c.count.adopted, c.dirty = c.count.live, !c.count.unsure, true, true
		}
		if c.cfg.Exclusive {
			c.live.end()
		}
		c.mu.Unlock()
		return nil
	}
	c.mu.Unlock()
	if err := c.RunOnce(ctx); err != nil {
		return err
	}
	c.mu.Lock()
	live, half := c.count.live, c.elsewhere()
	half.add(c.count.before, 1, 1)
	live.add(half, -1, 2)
	live.add(&c.own.Live, -1, 1)
	c.count = nil
	c.mu.Unlock()
	err := tablestore.Update(ctx, c.cfg.Store, c.key(rowBase), c.cfg.Random, func(row *tablestore.Row) (tablestore.Properties, error) {
		base := newSheet(tablestore.Now())
		c.mu.Lock()
		known := c.known[row.Key].at(row.ETag)
		c.mu.Unlock()
		switch {
		case known != nil:
			*base = *known
		case row.ETag != "":
			base = c.sheetOf(ctx, row)
		}
		base.AsOf, base.Live = tablestore.Now(), live
		c.mu.Lock()
		c.base = base
		c.mu.Unlock()
		return encode(base)
	})
	if err != nil {
		return fmt.Errorf("store the base of the census: %w", err)
	}
	return nil
}

// encode returns the properties of a sheet's row.
func encode(s *sheet) (tablestore.Properties, error) {
	data, err := json.Marshal(s)
	if err == nil && len(data) > maxSheetChars {
		short := *s
		short.Attempts = map[kind]*attempts{}
		for kind, a := range s.Attempts {
			short.Attempts[kind] = &attempts{window: a.window}
		}
		short.Live = s.Live.short()
		data, err = json.Marshal(&short)
		for err == nil && len(data) > maxSheetChars && len(short.Pollers)+len(short.Polls) > 0 {
			if short.Pollers == nil {
				short.Polls = short.Polls[:len(short.Polls)/2]
			}
			short.Pollers = nil
			data, err = json.Marshal(&short)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("encode the census: %w", err)
	}
	return tablestore.AppendLarge(nil, column, data), nil
}

// sheetOf returns the sheet of a row that an earlier or another process has stored. A row that
// cannot be read, such as one of another release, gives an empty sheet, and the next walk
// counts the live jobs again. The empty sheet is as of now, so that it does not seem silent.
func (c *Census) sheetOf(ctx context.Context, row *tablestore.Row) *sheet {
	s, err := decode(row)
	if err != nil {
		c.cfg.Logger.WarnContext(ctx, "stored counts cannot be read; counting again", "error", err)
		return newSheet(tablestore.Now())
	}
	return s
}

func decode(row *tablestore.Row) (*sheet, error) {
	s := newSheet(time.Time{})
	if err := json.Unmarshal(tablestore.Large(row.Properties, column), s); err != nil {
		return nil, fmt.Errorf("row %s: %w", row.Key, err)
	}
	return s, nil
}
