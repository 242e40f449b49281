package admission

import (
	"slices"
	"time"
)

// The arithmetic of leased tokens. A start is counted when its token is granted, so the window
// must be longer than the promised one by all that can lie between the two:
//
//	── window ──────────────────────────────▶◀─ life ─▶◀ skew ▶
//	x − life − skew                                            x + window
//	└── a token that is used after x was granted after this moment
//
//	life    how long a token can be used
//	span    window + life + skew: a grant counts for so long
//	bucket  span/buckets: grants of that time are counted together, as if at its end
//
//	invariant: ∀x: starts in (x, x+window] ≤ count, if any two clocks differ by at most skew

const (
	// buckets is how many buckets a span has: more would cost bytes in the row, fewer would let
	// less through.
	buckets = 40
	minLife = 250 * time.Millisecond
	maxLife = 3 * time.Second
	// wrong is by how much the clocks of two processes differ if one of them is wrong: the row
	// of another process is never followed so far.
	wrong = 5 * time.Second
)

// Bucket counts the tokens that were granted until its end.
type Bucket struct {
	End time.Time `json:"end"`
	N   int       `json:"n"`
}

// life is how long tokens of the limit can be used.
func (l *Limit) life() time.Duration {
	return min(max(l.Window/20, minLife), maxLife).Truncate(time.Millisecond)
}

// span is how long a grant counts.
func (l *Limit) span(skew time.Duration) time.Duration { return l.Window + l.life() + skew }

// bucket is the duration of a bucket.
func (l *Limit) bucket(skew time.Duration) time.Duration {
	const step = buckets * time.Millisecond // A bucket is of whole milliseconds, rounded up.
	return (l.span(skew) + step - 1).Truncate(step) / buckets
}

// at returns the time of a lease by a process whose clock shows now, in whole milliseconds.
// The times of a row do not go back unless a clock is wrong.
func (l *Limit) at(now time.Time) time.Time {
	now = now.UTC().Truncate(time.Millisecond)
	if l.At.After(now) && !l.At.After(now.Add(wrong)) {
		return l.At
	}
	return now
}

// counted returns the buckets that count at that time of the row. One whose end is too far in
// the future was written under a wrong clock. It counts as if it ended now, or it would close
// the limit for as long as that clock was ahead.
func (l *Limit) counted(at time.Time, skew time.Duration) (counted []Bucket, used int) {
	oldest, latest := at.Add(-l.span(skew)), at.Add(l.bucket(skew))
	for _, b := range l.Buckets {
		if b.End.After(latest) {
			b.End = latest
		}
		switch last := len(counted) - 1; {
		case !b.End.After(oldest):
			continue
		case last >= 0 && counted[last].End.Equal(b.End):
			counted[last].N += b.N
		default:
			counted = append(counted, b)
		}
		used += b.N
	}
	return counted, used
}

// Used returns how many tokens count at that time, and when the first of them no longer does;
// zero if none counts.
func (l *Limit) Used(now time.Time, skew time.Duration) (used int, leaves time.Time) {
	counted, used := l.counted(l.at(now), skew)
	if len(counted) > 0 {
		leaves = slices.MinFunc(counted, func(a, b Bucket) int { return a.End.Compare(b.End) }).End.Add(l.span(skew))
	}
	return used, leaves
}

// lease returns the row after a grant to a process whose clock shows now and that wants so many
// tokens, and how many it gets. They can be used until now plus [Limit.life]. A process that
// wants more than there are gets half of them, so that others get some too. If it gets none, the
// row is nil, unless it has buckets from the future: their new ends must be stored, or they would
// begin to count again and again.
func (l *Limit) lease(now time.Time, want int, skew time.Duration) (next *Limit, granted int) {
	at := l.at(now)
	counted, used := l.counted(at, skew)
	future := slices.ContainsFunc(l.Buckets, func(b Bucket) bool { return b.End.After(at.Add(l.bucket(skew))) })
	switch free := l.Count - used; {
	case free <= 0 && !future:
		return nil, 0
	case free <= 0:
	case want <= free:
		granted = want
	default:
		granted = (free + 1) / 2
	}
	if last := len(counted) - 1; last >= 0 && counted[last].End.After(at) {
		counted[last].N += granted
	} else {
		counted = append(counted, Bucket{End: at.Add(l.bucket(skew)), N: granted})
	}
	after := *l
	after.At, after.Buckets = at, counted
	return &after, granted
}
