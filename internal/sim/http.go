package sim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/problem"
)

// fields is a JSON object as an actor outside writes it.
type fields map[string]any

// post sends a request to the HTTP handler of the replica, as it came in over the
// network, and decodes its answer. The error is what the answer says, in the words
// that the invariants know, or that there was none.
func (r *request) post(path string, body fields, into any) error {
	encoded, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("encode a request: %w", err)
	}
	asked, err := http.NewRequestWithContext(r.ctx, http.MethodPost, "http://127.0.0.1"+path, bytes.NewReader(encoded))
	if err != nil {
		return fmt.Errorf("make a request: %w", err)
	}
	asked.RemoteAddr = "127.0.0.1:1"
	asked.Header.Set("Content-Type", "application/json")
	asked.Header.Set("X-Request-Id", strings.ReplaceAll(r.id, "#", "-")) // One that is made would be another in each run.
	answer := httptest.NewRecorder()
	r.handler.ServeHTTP(answer, asked)
	switch data := answer.Body.Bytes(); {
	case len(data) == 0:
		return errLost // The replica died meanwhile, or the client has gone.
	case answer.Code >= http.StatusBadRequest:
		return told(answer.Code, data)
	case into == nil:
		return nil
	default:
		if err := json.Unmarshal(data, into); err != nil {
			return fmt.Errorf("%s answered what is no answer: %w", path, err)
		}
		return nil
	}
}

// told is the error that a problem stands for.
func told(status int, data []byte) error {
	var p struct {
		Code   problem.Code `json:"code"`
		Status int          `json:"status"`
		Detail string       `json:"detail"`
	}
	if err := json.Unmarshal(data, &p); err != nil || p.Status != status || p.Code.Status() != status {
		return fmt.Errorf("%d is answered with %q, which is no problem of ours", status, data)
	}
	switch p.Code {
	case problem.IdempotencyMismatch:
		return ledger.ErrIdempotencyMismatch
	case problem.TenantLimit:
		return ledger.ErrTenantLimit
	case problem.JobNotFound:
		return ledger.ErrJobNotFound
	default:
		return &problem.Error{Code: p.Code, Detail: p.Detail}
	}
}
