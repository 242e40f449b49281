package cli

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/apierror"
)

// The exit codes of all commands. ExitDefect is that of a server that stopped because it had
// detected an internal defect, ExitLost of one whose open data folder was removed or replaced:
// started again before the folder is back, it would make an empty store.
const (
	ExitFailed      = 1
	ExitUsage       = 2
	ExitNotFound    = 3
	ExitForbidden   = 4
	ExitUnavailable = 5
	ExitRefused     = 6
	ExitAttention   = 7
	ExitDefect      = 70
	ExitLost        = 71
	ExitInterrupted = 130
)

// exitCodesHelp documents the exit codes. docs/use/cli.md has the same table.
const exitCodesHelp = `Every command exits with one of these codes:

    0  done
    1  the operation did not succeed: a job failed under --wait, an audit or a check found
       something, or a server could not start
    2  the command line is wrong, the server rejected the request as malformed (400, 413),
       or an audit or a check could not be done
    3  not found
    4  not allowed: no valid token, or one that does not cover this
    5  the server cannot be reached, is unavailable or overloaded, or failed
    6  refused because of the current state or the content (409, 422): a conflict, or a
       command that no protocol, or no schema of its protocol, accepts
    7  lucius attention found something
   70  the server detected an internal defect and stopped
   71  the server's data folder was removed or replaced while it was open
  130  interrupted`

// Error is an error with an exit code. Its text is a sentence for people.
type Error struct {
	Code int
	Err  error
	// Problem is the server's response, if it was a problem.
	Problem *api.Problem
}

// Error returns the sentence.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// ExitCode returns the exit code of a command that ended with err.
func ExitCode(err error) int {
	if err == nil {
		return 0
	}
	if errors.Is(err, errInterrupted) {
		return ExitInterrupted
	}
	if exit, ok := errors.AsType[*Error](err); ok {
		return exit.Code
	}
	return ExitFailed
}

// usagef returns the error of a wrong command line.
func usagef(format string, args ...any) error {
	return &Error{Code: ExitUsage, Err: fmt.Errorf(format, args...)}
}

// maxAnswer bounds how much of a response is read.
const maxAnswer = 256 << 20

// call decodes a response of the API. Its error is an [*Error].
func call[T any](response *http.Response, err error) (answer T, _ error) {
	if err != nil {
		return answer, unreachable(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return answer, unreachable(err)
	}
	if response.StatusCode/100 != 2 {
		return answer, refusal(response, body)
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return answer, notLucius(response)
	}
	return answer, nil
}

// refusal returns the error for a response that is not 2xx.
func refusal(response *http.Response, body []byte) error {
	var p api.Problem
	mediaType, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type"))
	if err := json.Unmarshal(body, &p); err != nil || mediaType != "application/problem+json" || p.Code == "" {
		return notLucius(response)
	}
	if p.Code == apierror.Unauthenticated && response.Request.Header.Get("Authorization") == "" {
		p.Detail = "" // The detail is about headers, which help only programs.
	}
	return problemError(&p)
}

// notLucius returns the error for a response that no Lucius server sends.
func notLucius(response *http.Response) error {
	return &Error{Code: ExitUnavailable, Err: fmt.Errorf(
		"%s answered %d, but not like a Lucius server: check --url, or a proxy in front of it",
		origin(response.Request.URL), response.StatusCode)}
}

// problemError returns the error for a problem: what is wrong, and what to do.
func problemError(p *api.Problem) error {
	text := cmp.Or(p.Detail, p.Title)
	if len(p.Errors) > 1 { // The detail has only the first violation, and their number.
		all := make([]string, len(p.Errors))
		for i, violation := range p.Errors {
			all[i] = strings.TrimSpace(violation.Pointer + " " + violation.Message)
		}
		text = strings.Join(all, "; ")
	}
	if needs, found := strings.CutSuffix(strings.TrimSuffix(text, "."), "; name a tenant_id of yours"); found {
		text = needs + ": name one of your tenants with --tenant, or ask for a token that covers all"
	} else if hint := hints[p.Code]; hint != "" {
		text = strings.TrimSuffix(text, ".") + ": " + hint
	}
	return &Error{Code: exitCodeOf(p.Status), Err: errors.New(plain(strings.TrimSuffix(text, "."))), Problem: p}
}

// exitCodeOf returns the exit code of an HTTP status.
func exitCodeOf(status int32) int {
	switch {
	case status == http.StatusNotFound:
		return ExitNotFound
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return ExitForbidden
	case status == http.StatusConflict, status == http.StatusUnprocessableEntity:
		return ExitRefused
	case status == http.StatusTooManyRequests, status >= http.StatusInternalServerError:
		return ExitUnavailable
	}
	return ExitUsage
}

// hints say what to do about problems whose detail does not say it.
var hints = map[apierror.Code]string{
	apierror.Unauthenticated:    "give a token with --token-file, LUCIUS_TOKEN or a context",
	apierror.Forbidden:          "ask for a token that covers this",
	apierror.JobNotFound:        "check the id; lucius jobs list shows the jobs that you may read",
	apierror.RateLimited:        "wait a moment and repeat the command",
	apierror.TenantLimit:        "wait until jobs of the tenant have ended, and repeat the command",
	apierror.LineFull:           "wait until jobs of the order key have ended, and repeat the command",
	apierror.LineBusy:           "wait until that job has ended, and repeat the command",
	apierror.PredecessorRefused: "repeat the command once the one before it is accepted",
	apierror.StoreUnavailable:   "repeat the command when it is back",
	apierror.IssuerUnavailable:  "repeat the command when it is back",
	apierror.ShuttingDown:       "repeat the command",
	apierror.Conflict:           "repeat the command",
	apierror.Internal:           "the server's log says more",
}

// unreachable returns the error for a request without a response.
func unreachable(err error) error {
	if known, ok := errors.AsType[*Error](err); ok {
		return known
	}
	if errors.Is(err, context.Canceled) {
		return &Error{Code: ExitInterrupted, Err: errInterrupted}
	}
	server, cause := "the server", "the connection broke"
	if failed, ok := errors.AsType[*url.Error](err); ok {
		if parsed, err := url.Parse(failed.URL); err == nil {
			server = origin(parsed)
		}
	}
	todo := "start one with lucius serve, or name another with --url, LUCIUS_URL or --context"
	var authority x509.UnknownAuthorityError
	var verification *tls.CertificateVerificationError
	var lookup *net.DNSError
	switch {
	case errors.As(err, &authority):
		cause, todo = "its certificate is signed by an unknown authority", "name the authority's certificate with --ca-file"
	case errors.As(err, &verification):
		cause, todo = verification.Err.Error(), "check the host name in --url"
	case strings.Contains(err.Error(), "HTTP response to HTTPS client"):
		cause, todo = "it does not speak TLS", "use http:// in --url"
	case strings.Contains(err.Error(), "remote error: tls"):
		cause, todo = "it refuses the TLS connection", "give a certificate with --client-cert and --client-key"
	case errors.As(err, &lookup):
		cause = "there is no host " + lookup.Name
	case errors.Is(err, syscall.ECONNREFUSED):
		cause = "the connection was refused"
	case isTimeout(err):
		cause, todo = "it does not answer in time", "repeat the command, or look at the server"
	}
	return &Error{Code: ExitUnavailable, Err: fmt.Errorf("cannot reach %s: %s: %s", server, cause, todo)}
}

func isTimeout(err error) bool {
	timeout, ok := errors.AsType[net.Error](err)
	return ok && timeout.Timeout() || errors.Is(err, context.DeadlineExceeded)
}

// origin returns the scheme and host of a URL, without parts that may be secret.
func origin(u *url.URL) string { return u.Scheme + "://" + u.Host }
