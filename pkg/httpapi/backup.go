package httpapi

import (
	"context"
	"io"
	"net/http"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/auth"
	"github.com/lucius-project/lucius/pkg/ledger"
)

// Backup is a copy of the store as of one moment, until it is closed.
type Backup interface {
	// Stream writes the copy until ctx ends. After an error, what was written is no backup.
	Stream(ctx context.Context, w io.Writer) error
	Close() error
}

// backupWrite is how long a client may take to read a part of a backup, of at most 128 KiB.
// It is shorter than the grace of a server that stops.
const backupWrite = 15 * time.Second

// errNoBackups is returned if the store has no backups.
var errNoBackups = apierror.Newf(apierror.NotFound,
	"Only a store in a data folder has backups. Back up PostgreSQL or a storage account by its own means.")

// CreateBackup is POST /v1/admin/backup. An answer that cannot be completed ends with its
// connection, so that no client takes it for whole.
func (e *endpoints) CreateBackup(w http.ResponseWriter, r *http.Request) {
	serve(e, w, r, http.StatusOK, optional, func(ctx context.Context, request api.ControlRequest) (any, error) {
		if e.Backup == nil {
			return nil, errNoBackups
		}
		state := requestStateOf(ctx)
		state.drop()
		state.long = true
		release, err := e.streams.acquire(ctx, auth.CallerOf(ctx).Name(), 1)
		if err != nil {
			return nil, err
		}
		defer release()
		backup, err := e.Backup(ctx)
		if err != nil {
			return nil, ledger.Problem(err)
		}
		defer func() {
			if err := backup.Close(); err != nil {
				e.config.Log.ErrorContext(ctx, "backup could not be removed", "error", err, "request_id", state.id)
			}
		}()
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set("Cache-Control", "no-store")
		out := &backupAnswer{endpoints: e, w: w, r: r, control: http.NewResponseController(w), checked: time.Now()}
		err = ledger.Problem(backup.Stream(ctx, out))
		switch {
		case err == nil:
			e.config.Log.InfoContext(ctx, "backup sent", "bytes", state.bytes, "took", time.Since(state.begun).String(),
				"reason", request.Reason, "request_id", state.id)
		case state.status == 0:
			return nil, err
		default:
			fault := apierror.From(err)
			state.status = fault.Code.Status() // For the records: the client has seen another.
			if out.broken || ctx.Err() != nil {
				state.status = statusClientGone
			} else {
				e.respond.logFault(r, fault)
			}
			panic(http.ErrAbortHandler)
		}
		return nil, nil // It has answered.
	})
}

// backupAnswer is the body of an answer with a backup.
type backupAnswer struct {
	endpoints *endpoints
	w         http.ResponseWriter
	r         *http.Request
	control   *http.ResponseController
	checked   time.Time // When the caller's rights were checked last.
	broken    bool      // The client does not read.
}

// Write writes a part, unless the server drains or the caller may no longer have it.
func (a *backupAnswer) Write(p []byte) (int, error) {
	if a.endpoints.draining() {
		return 0, errDraining
	}
	if time.Since(a.checked) > streamRecheck {
		a.checked = time.Now()
		if !a.endpoints.guard.stillAuthorized(a.r) {
			return 0, apierror.Newf(apierror.Forbidden, "The caller's rights were withdrawn.")
		}
	}
	// A writer without a connection has no deadlines, and needs none.
	_ = a.control.SetWriteDeadline(time.Now().Add(backupWrite))
	n, err := a.w.Write(p)
	a.broken = err != nil
	return n, err
}
