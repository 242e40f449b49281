package access

import (
	"context"
	"log/slog"
	"regexp"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// Outcome is what became of an action.
type Outcome string

// The outcomes.
const (
	// Done says that the action was carried out.
	Done Outcome = "done"
	// Denied says that the caller was not let: 401, 403, or 404 for what belongs
	// to another tenant.
	Denied Outcome = "denied"
	// Failed says that the action was let and did not succeed.
	Failed Outcome = "failed"
)

// Record is one action of a caller, for the audit log.
type Record struct {
	// At is when the action ended.
	At time.Time
	// Caller is who acted. The zero value stands for one that is not known.
	Caller Caller
	// From is the address that the request came from.
	From string
	// Action is the operation's id, such as cancelJob.
	Action string
	// Object is the id of what was acted on, empty where there is none.
	Object string
	// Tenant is whose it is, empty for all tenants or where that is not known.
	Tenant string
	// Outcome is what became of it.
	Outcome Outcome
}

const (
	// strangerRecords is how many records there may be of callers who are not known,
	// in a second and in the long run.
	strangerRecords = 1
	// strangerBurst is how many there may be at once.
	strangerBurst = 100
)

// Audit writes audit records. It is safe for concurrent use.
type Audit struct {
	log       *slog.Logger
	strangers *rate.Limiter
	leftOut   atomic.Int64 // Records of strangers since the last one that was written.
}

// NewAudit returns an audit log that writes to the logger, which should be one of
// its own: audit records are kept longer, and by others, than a server's log.
func NewAudit(log *slog.Logger) *Audit {
	return &Audit{log: log, strangers: rate.NewLimiter(strangerRecords, strangerBurst)}
}

// Write writes the record, at level info. There is no field for a secret; ids
// come from requests, so what looks like a token in them is masked.
//
// Anybody can be refused as often as they like, so of callers who are not known it
// writes 100 records at once and one a second after that, by the records' times.
// The next record, of whomever, says in left_out how many it did not write.
func (a *Audit) Write(ctx context.Context, record Record) {
	if record.Caller.name == "" && !a.strangers.AllowN(record.At, 1) {
		a.leftOut.Add(1)
		return
	}
	attrs := []slog.Attr{
		slog.Time("at", record.At.UTC()),
		slog.String("caller", Printable(record.Caller.name)),
		slog.String("origin", string(record.Caller.origin)),
		slog.String("from", Printable(record.From)),
		slog.String("action", Printable(record.Action)),
		slog.String("object", Printable(record.Object)),
		slog.String("tenant", Printable(record.Tenant)),
		slog.String("outcome", string(record.Outcome)),
	}
	if leftOut := a.leftOut.Swap(0); leftOut > 0 {
		attrs = append(attrs, slog.Int64("left_out", leftOut))
	}
	a.log.LogAttrs(ctx, slog.LevelInfo, "audit", attrs...)
}

// secrets is what tokens look like: those of [NewToken], and JWTs.
var secrets = regexp.MustCompile(TokenPrefix + `[a-z2-7]{16,}|eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]*)?`)

// maxAudited is the longest text in a record, in bytes.
const maxAudited = 512

// Printable is a text from a request as a log may have it: what looks like a token
// is masked, and of a long text only the beginning is there.
func Printable(text string) string {
	masked := secrets.ReplaceAllString(text, "[masked]")
	return strings.ToValidUTF8(masked[:min(len(masked), maxAudited)], "")
}
