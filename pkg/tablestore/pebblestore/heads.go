package pebblestore

import "sync"

const (
	// learnAfter is how many dead entries a scan has to step over before it is
	// worth remembering where the live ones begin.
	learnAfter = 64
	// maxGaps bounds what one stripe remembers.
	maxGaps = 32
	// partitionEnd sorts after every row key.
	partitionEnd = "\xff"
)

// heads remembers, for ranges whose head is full of removed rows, where the
// first row may be. A queue or schedule is scanned from the same place again
// and again while rows are removed at its head and added behind; until the
// engine has compacted them, each scan would step over all that were removed.
//
// A gap is a promise that no row in [from, to) is visible. It stays true
// because a writer cuts it after its row can be seen by scans, and before
// anyone is told of the row; see [heads.put].
type heads struct {
	mu      sync.Mutex
	gaps    map[place]string // The end of the gap that begins there.
	watches map[*watch]struct{}
}

// place is where a query begins.
type place struct{ table, partition, from string }

// watch follows what is written while a scan is under way.
type watch struct {
	place place
	// low is the first row at or behind the place that was written since.
	low string
}

// covers reports whether the row lies at or behind the place.
func (p place) covers(table, partition, row string) bool {
	return row >= p.from && partition == p.partition && table == p.table
}

// begin is called before a scan makes its iterator. It returns the row at
// which the scan may begin.
func (h *heads) begin(at place) (w *watch, start string) {
	w = &watch{place: at, low: partitionEnd}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.watches == nil {
		h.watches = map[*watch]struct{}{}
	}
	h.watches[w] = struct{}{}
	if to, ok := h.gaps[at]; ok {
		return w, to
	}
	return w, at.from
}

// end is called when the scan has found its first row, or the end of its
// range, or has failed: then first is "". The dead entries are those that it
// stepped over to get there.
func (h *heads) end(w *watch, first string, dead int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.watches, w)
	to, known := h.gaps[w.place]
	// What other scans and writers left there is true too.
	to = max(to, min(first, w.low))
	if to <= w.place.from || !known && dead < learnAfter {
		return
	}
	if h.gaps == nil {
		h.gaps = map[place]string{}
	}
	if !known && len(h.gaps) == maxGaps {
		h.forgetOne()
	}
	h.gaps[w.place] = to
}

// put is called for each row that is written, after every new iterator shows
// it and before the write is acknowledged or any reader that saw it returns.
// A scan whose iterator is older is still watched, or has left a gap, which
// is cut; one that uses a gap before that may miss the row, as it may miss
// any row whose write is under way.
func (h *heads) put(table, partition, row string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for at, to := range h.gaps {
		switch {
		case row >= to || !at.covers(table, partition, row):
		case row == at.from:
			delete(h.gaps, at)
		default:
			h.gaps[at] = row
		}
	}
	for w := range h.watches {
		if w.place.covers(table, partition, row) {
			w.low = min(w.low, row)
		}
	}
}

// forgetOne makes room for a new gap.
func (h *heads) forgetOne() {
	for at := range h.gaps {
		delete(h.gaps, at)
		return
	}
}
