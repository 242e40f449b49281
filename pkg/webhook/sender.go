package webhook

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strconv"
	"time"
)

// Message is a webhook as it is sent.
type Message struct {
	// ID is the same for each attempt. Required.
	ID string
	// TenantID is the tenant whose secrets sign it. Required.
	TenantID string
	// URL is the destination. Required.
	URL string
	// Body is sent unchanged, as application/json.
	Body []byte
}

// Sender sends webhooks. It is safe for concurrent use. Close it after use.
type Sender struct {
	cfg       Config
	transport *http.Transport
}

// NewSender returns a sender. The error names the missing or invalid field.
func NewSender(cfg Config) (*Sender, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	full := cfg.withDefaults()
	return &Sender{cfg: full, transport: newTransport(&full)}, nil
}

// Close closes the idle connections.
func (s *Sender) Close() { s.transport.CloseIdleConnections() }

// Send makes one attempt and returns its result, within the configured time. It sends
// nothing if the guard refuses. Each attempt has a new timestamp and signature.
func (s *Sender) Send(ctx context.Context, message Message) Result {
	if err := s.cfg.Guard.CheckURL(message.URL); err != nil {
		return failure(err)
	}
	secrets := s.cfg.Secrets(message.TenantID)
	if len(secrets) == 0 {
		return Result{Outcome: Failed, Reason: "there is no secret to sign it with"}
	}
	bounded, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	request, err := s.request(bounded, &message, secrets)
	if err != nil {
		return Result{Outcome: Refused, Reason: "callback URL makes no request"}
	}
	response, err := s.transport.RoundTrip(request)
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return Result{Outcome: Interrupted, Reason: "interrupted before there was an answer"}
	default:
		return failure(err)
	}
	defer response.Body.Close()
	if response.StatusCode >= http.StatusOK {
		// The status decides the result; a broken body changes nothing.
		_, _ = io.CopyN(io.Discard, response.Body, maxAnswerBody)
	}
	return s.answer(response, time.Now())
}

func (s *Sender) request(ctx context.Context, message *Message, secrets []Secret) (*http.Request, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, message.URL, bytes.NewReader(message.Body))
	if err != nil {
		return nil, err
	}
	now := time.Now()
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("User-Agent", s.cfg.UserAgent)
	request.Header.Set(HeaderID, message.ID)
	request.Header.Set(HeaderTimestamp, strconv.FormatInt(now.Unix(), 10))
	request.Header.Set(HeaderSignature, Sign(message.ID, now, message.Body, secrets...))
	// A webhook is idempotent by its id. This entry, which is not sent, tells the
	// transport so: it then retries on a new connection if the receiver has closed
	// the old one.
	request.Header["Idempotency-Key"] = nil
	return request, nil
}
