package pebblestore

import "sync"

const (
	// learnAfter is how many tombstones a scan has to step over before the
	// skipper remembers where the live rows begin.
	learnAfter = 64
	// maxGaps is the most gaps that one stripe remembers.
	maxGaps = 32
	// partitionEnd sorts after every row key.
	partitionEnd = "\xff"
)

// tombstoneSkipper remembers, for ranges that begin with many tombstones, where
// the first live row may be. A queue or schedule is scanned from the same place
// again and again while rows are removed at its head and added at its tail;
// until the engine has compacted the tombstones, each scan would step over all
// of them.
//
// Writers cut the gaps in [tombstoneSkipper.put].
type tombstoneSkipper struct {
	mu      sync.Mutex
	gaps    map[place]string // invariant: gaps[p] = to ⇒ no acknowledged row is in [p.from, to)
	watches map[*watch]struct{}
}

// place is where a query begins.
type place struct{ table, partition, from string }

// watch records which rows are written during a scan.
type watch struct {
	place place
	// low is the lowest row at or after the place that was written since.
	low string
}

// covers reports whether the row is at or after the place.
func (p place) covers(table, partition, row string) bool {
	return row >= p.from && partition == p.partition && table == p.table
}

// begin is called before a scan makes its iterator. It returns the row at
// which the scan may begin.
func (t *tombstoneSkipper) begin(at place) (w *watch, start string) {
	w = &watch{place: at, low: partitionEnd}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.watches == nil {
		t.watches = map[*watch]struct{}{}
	}
	t.watches[w] = struct{}{}
	if to, ok := t.gaps[at]; ok {
		return w, to
	}
	return w, at.from
}

// end is called when the scan has found its first row or the end of its range,
// or has failed; first is "" after a failure. dead is the number of tombstones
// that the scan stepped over.
func (t *tombstoneSkipper) end(w *watch, first string, dead int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.watches, w)
	to, known := t.gaps[w.place]
	// A gap that another scan noted and writers cut is also true.
	to = max(to, min(first, w.low))
	if to <= w.place.from || !known && dead < learnAfter {
		return
	}
	if t.gaps == nil {
		t.gaps = map[place]string{}
	}
	if !known && len(t.gaps) == maxGaps {
		t.forgetOne()
	}
	t.gaps[w.place] = to
}

// put cuts the gaps at a written row. It is called after new iterators show the
// row, and before the write is acknowledged or a reader that saw the row
// returns. A scan with an older iterator is either still watched or has left a
// gap, which put cuts. A scan that uses the gap before put cuts it may miss the
// row, as it may miss any row whose write is under way.
func (t *tombstoneSkipper) put(table, partition, row string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for at, to := range t.gaps {
		switch {
		case row >= to || !at.covers(table, partition, row):
		case row == at.from:
			delete(t.gaps, at)
		default:
			t.gaps[at] = row
		}
	}
	for w := range t.watches {
		if w.place.covers(table, partition, row) {
			w.low = min(w.low, row)
		}
	}
}

// forgetOne makes room for a new gap.
func (t *tombstoneSkipper) forgetOne() {
	for at := range t.gaps {
		delete(t.gaps, at)
		return
	}
}
