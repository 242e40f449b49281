package failures

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/lucius-project/lucius/pkg/ledger"
)

// The limits of a [Request], and what it is without them.
const (
	// MaxJobIDs is how many jobs it may name.
	MaxJobIDs = 1000
	// MaxLimit is how many jobs it may be for.
	MaxLimit = 10_000
	// DefaultLimit is its Limit where that is 0.
	DefaultLimit = 1000
	// MaxRate is its largest RatePerSecond.
	MaxRate = 1000
	// DefaultRate is its RatePerSecond where that is 0.
	DefaultRate = 20
)

// Request says which jobs to rerun, and how.
type Request struct {
	// JobIDs are the jobs, FAILED_FINAL or CANCELLED, in the order to be rerun in.
	// Where there are none, the filter chooses among those that are FAILED_FINAL,
	// the newest first; of the index it reads 100,000 entries at most.
	JobIDs []string
	Filter Filter
	// From is the starting point. Optional. Defaults to the failed step.
	From ledger.RerunFrom
	// Limit is the most jobs that the filter chooses. Optional. Defaults to
	// [DefaultLimit].
	Limit int
	// RatePerSecond is the most reruns that begin in a second. Optional. Defaults
	// to [DefaultRate].
	RatePerSecond float64
	// Reason and Actor are for the history of the new jobs. Optional.
	Reason string
	Actor  string
}

// settled returns the request with its defaults, or the problem of the first
// field that makes no sense.
func (r *Request) settled() (Request, error) {
	out := *r
	out.From = cmp.Or(out.From, ledger.FromFailed)
	out.Limit = cmp.Or(out.Limit, DefaultLimit)
	out.RatePerSecond = cmp.Or(out.RatePerSecond, DefaultRate)
	switch {
	case len(out.JobIDs) > MaxJobIDs:
		return out, invalid("/job_ids", fmt.Sprintf("must hold at most %d", MaxJobIDs))
	case len(out.JobIDs) > 0 && out.Filter != Filter{}:
		return out, invalid("/job_ids", "must not stand beside filters")
	case out.From != ledger.FromFailed && out.From != ledger.FromStart:
		return out, invalid("/from", "must be failed or start")
	case out.Limit < 0 || out.Limit > MaxLimit:
		return out, invalid("/limit", fmt.Sprintf("must be from 0 to %d", MaxLimit))
	case !(out.RatePerSecond > 0 && out.RatePerSecond <= MaxRate): // Not a number is neither.
		return out, invalid("/rate_per_second", fmt.Sprintf("must be from 0 to %d", MaxRate))
	case !out.Filter.possible():
		return out, invalid("/created_after", "must be before created_before")
	}
	out.JobIDs = unique(out.JobIDs)
	return out, nil
}

// unique returns the ids without repetitions, in their order.
func unique(ids []string) []string {
	seen := map[string]bool{}
	return slices.DeleteFunc(slices.Clone(ids), func(id string) bool {
		again := seen[id]
		seen[id] = true
		return again
	})
}

// digest stands for what a settled request asks for.
func (r *Request) digest() string {
	hash := sha256.New()
	for _, text := range []string{
		r.Filter.TenantID, r.Filter.RequestType, r.Filter.StepType, r.Filter.ErrorCode,
		instant(r.Filter.CreatedAfter), instant(r.Filter.CreatedBefore), string(r.From), strconv.Itoa(r.Limit),
		strconv.FormatFloat(r.RatePerSecond, 'g', -1, 64), r.Reason,
	} {
		fmt.Fprintf(hash, "%q\n", text)
	}
	fmt.Fprintf(hash, "%q", r.JobIDs)
	return hex.EncodeToString(hash.Sum(nil))
}

// instant is a time's text, whatever its zone.
func instant(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// keyedID is the id of the operation under that key.
func keyedID(key string) string {
	return uuid.NewHash(sha256.New(), uuid.Nil, []byte("retry "+key), 8).String()
}
