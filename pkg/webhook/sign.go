package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// The headers of a webhook, as Standard Webhooks 1.0 names them.
const (
	// HeaderID holds the webhook's id, the same for each attempt: a receiver ignores
	// ids that it has seen before.
	HeaderID = "webhook-id"
	// HeaderTimestamp holds the time of the attempt, in Unix seconds.
	HeaderTimestamp = "webhook-timestamp"
	// HeaderSignature holds the signatures, with a space between them.
	HeaderSignature = "webhook-signature"
)

// signatureVersion marks the signatures by a shared secret.
const signatureVersion = "v1,"

// DefaultTolerance is the largest difference between the receiver's and the sender's clock.
const DefaultTolerance = 5 * time.Minute

// The reasons for which [Verify] refuses a request.
var (
	// ErrMissingHeader is returned when a request lacks one of the three headers.
	ErrMissingHeader = errors.New("webhook: header is missing")
	// ErrTimestamp is returned when the timestamp is not a number of seconds, or is
	// too far in the past or in the future.
	ErrTimestamp = errors.New("webhook: timestamp is not acceptable")
	// ErrSignature is returned when no signature matches one of the secrets.
	ErrSignature = errors.New("webhook: no signature matches")
)

// Sign returns the webhook-signature of an attempt: one signature for each secret.
// The id must not be under the control of a client.
func Sign(id string, at time.Time, body []byte, secrets ...Secret) string {
	signatures := make([]string, len(secrets))
	for i, secret := range secrets {
		sum := digest(id, strconv.FormatInt(at.Unix(), 10), body, secret)
		signatures[i] = signatureVersion + base64.StdEncoding.EncodeToString(sum)
	}
	return strings.Join(signatures, " ")
}

func digest(id, timestamp string, body []byte, secret Secret) []byte {
	mac := hmac.New(sha256.New, []byte(secret.key))
	mac.Write([]byte(id + "." + timestamp + "."))
	mac.Write(body)
	return mac.Sum(nil)
}

// Verify reports whether a request was signed with one of the secrets, at a time
// no further than tolerance from now. The body is that of the request, byte for
// byte. It ignores signatures of other versions. It returns [ErrMissingHeader],
// [ErrTimestamp] or [ErrSignature], and takes the same time for any matching
// signature.
func Verify(header http.Header, body []byte, now time.Time, tolerance time.Duration, secrets ...Secret) error {
	for _, name := range []string{HeaderID, HeaderTimestamp, HeaderSignature} {
		if header.Get(name) == "" {
			return fmt.Errorf("%w: %s", ErrMissingHeader, name)
		}
	}
	id, timestamp, given := header.Get(HeaderID), header.Get(HeaderTimestamp), header.Get(HeaderSignature)
	if err := checkTimestamp(timestamp, now, tolerance); err != nil {
		return err
	}
	var signatures [][]byte
	for field := range strings.FieldsSeq(given) {
		encoded, ok := strings.CutPrefix(field, signatureVersion)
		if sum, err := base64.StdEncoding.DecodeString(encoded); ok && err == nil {
			signatures = append(signatures, sum)
		}
	}
	matches := false
	for _, secret := range secrets {
		want := digest(id, timestamp, body, secret)
		for _, sum := range signatures {
			matches = hmac.Equal(sum, want) || matches
		}
	}
	if !matches {
		return ErrSignature
	}
	return nil
}

func checkTimestamp(text string, now time.Time, tolerance time.Duration) error {
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return fmt.Errorf("%w: it is no number of seconds", ErrTimestamp)
	}
	at := time.Unix(seconds, 0)
	switch {
	case at.Before(now.Add(-tolerance)):
		return fmt.Errorf("%w: it is too old", ErrTimestamp)
	case at.After(now.Add(tolerance)):
		return fmt.Errorf("%w: it lies in the future", ErrTimestamp)
	}
	return nil
}
