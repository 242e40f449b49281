package sim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/ledger"
)

// fields is a JSON object in a request.
type fields map[string]any

// post sends a request with a body. It returns the errors of send.
func (r *request) post(path string, body fields, into any) error {
	encoded, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("encode a request: %w", err)
	}
	return r.send(http.MethodPost, path, bytes.NewReader(encoded), into)
}

// get reads a resource. It returns the errors of send.
func (r *request) get(path string, into any) error {
	return r.send(http.MethodGet, path, http.NoBody, into)
}

// send sends a request to the HTTP handler of the replica, as if over the network, and
// decodes the response. It returns an error response as an error that the checker knows, and
// errLost if there was no response.
func (r *request) send(method, path string, body io.Reader, into any) error {
	asked, err := http.NewRequestWithContext(r.ctx, method, "http://127.0.0.1"+path, body)
	if err != nil {
		return fmt.Errorf("make a request: %w", err)
	}
	asked.RemoteAddr = "127.0.0.1:1"
	if method == http.MethodPost {
		asked.Header.Set("Content-Type", "application/json")
	}
	asked.Header.Set("X-Request-Id", strings.ReplaceAll(r.id, "#", "-")) // A generated id would differ from run to run.
	answer := httptest.NewRecorder()
	r.handler.ServeHTTP(answer, asked)
	switch data := answer.Body.Bytes(); {
	case len(data) == 0:
		return errLost // The replica crashed, or the client gave up.
	case answer.Code >= http.StatusBadRequest:
		return problemError(answer.Code, data)
	case into == nil:
		return nil
	default:
		if err := json.Unmarshal(data, into); err != nil {
			return fmt.Errorf("%s answered with invalid JSON: %w", path, err)
		}
		return nil
	}
}

// problemError returns the error that a problem response represents.
func problemError(status int, data []byte) error {
	var p struct {
		Code   apierror.Code `json:"code"`
		Status int           `json:"status"`
		Detail string        `json:"detail"`
	}
	if err := json.Unmarshal(data, &p); err != nil || p.Status != status || p.Code.Status() != status {
		return fmt.Errorf("the response with status %d has the body %q, which is not a problem of this API", status, data)
	}
	switch p.Code {
	case apierror.IdempotencyMismatch:
		return ledger.ErrIdempotencyMismatch
	case apierror.TenantLimit:
		return ledger.ErrTenantLimit
	case apierror.JobNotFound:
		return ledger.ErrJobNotFound
	default:
		return &apierror.Error{Code: p.Code, Detail: p.Detail}
	}
}
