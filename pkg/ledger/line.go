package ledger

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// The limits of [Command.MaxWaiting].
const (
	DefaultMaxWaiting = 10_000
	MaxMaxWaiting     = 1_000_000
)

// The refusals of a command for its line.
var (
	// ErrLineFull is returned for a command whose line has as many jobs as the command allows.
	ErrLineFull = errors.New("line is full")
)

// LineBusyError is returned for a command whose mode is reject and whose line has a job.
type LineBusyError struct{ JobID string }

// Error names the job.
func (e *LineBusyError) Error() string { return fmt.Sprintf("job %s is in the line", e.JobID) }

// LineID returns the id of the line of a tenant's order key.
func LineID(tenantID, key string) string {
	sum := sha256.Sum256([]byte(tablestore.Join("key", tenantID, key)))
	return hex.EncodeToString(sum[:])
}
