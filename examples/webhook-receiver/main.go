// Command webhook-receiver takes the webhooks of Lucius: it verifies who sent them, and acts
// on each once. It needs the standard library alone.
package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// tolerance is how old a webhook may be: an attacker who has recorded one cannot send
	// it again later.
	tolerance = 5 * time.Minute
	// largest exceeds the size of any webhook's body.
	largest = 1 << 20
)

// event is the body of a webhook.
type event struct {
	Type string `json:"type"`
	Data struct {
		JobID       string          `json:"jobId"`
		FinalOutput json.RawMessage `json:"final_output"`
	} `json:"data"`
}

// receiver answers webhooks. It is safe for concurrent use.
type receiver struct {
	key    []byte
	handle func(event) error

	mu sync.Mutex
	// handled are the ids of webhooks. A real receiver keeps them in its database, in the
	// transaction that acts on the event, and for longer than webhooks are repeated.
	handled map[string]bool
}

// newReceiver returns a receiver for a tenant's secret, as lucius webhook-secret prints it.
func newReceiver(secret string, handle func(event) error) (*receiver, error) {
	encoded, ok := strings.CutPrefix(secret, "whsec_")
	key, err := base64.StdEncoding.DecodeString(encoded)
	if !ok || err != nil || len(key) == 0 {
		return nil, errors.New("WEBHOOK_SECRET is not what lucius webhook-secret prints")
	}
	return &receiver{key: key, handle: handle, handled: map[string]bool{}}, nil
}

// ServeHTTP answers one webhook: 204 if it was acted on, now or before. Any other answer
// makes Lucius send it again.
func (r *receiver) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, request.Body, largest))
	if err != nil {
		http.Error(w, "the body cannot be read", http.StatusBadRequest)
		return
	}
	if !r.genuine(request.Header, body, time.Now()) {
		http.Error(w, "the signature is not that of Lucius", http.StatusUnauthorized)
		return
	}
	var received event
	if err := json.Unmarshal(body, &received); err != nil {
		http.Error(w, "the body is not JSON", http.StatusBadRequest)
		return
	}
	if err := r.once(request.Header.Get("webhook-id"), received); err != nil {
		http.Error(w, "try again later", http.StatusInternalServerError)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// genuine reports whether one of the signatures was made recently with the key.
func (r *receiver) genuine(header http.Header, body []byte, now time.Time) bool {
	seconds, err := strconv.ParseInt(header.Get("webhook-timestamp"), 10, 64)
	if err != nil || now.Sub(time.Unix(seconds, 0)).Abs() > tolerance {
		return false
	}
	mac := hmac.New(sha256.New, r.key)
	fmt.Fprintf(mac, "%s.%d.%s", header.Get("webhook-id"), seconds, body)
	want := []byte("v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	for signature := range strings.FieldsSeq(header.Get("webhook-signature")) {
		if hmac.Equal(want, []byte(signature)) {
			return true
		}
	}
	return false
}

// once acts on the event unless it was handled before. If that fails, the next attempt may
// succeed.
func (r *receiver) once(id string, received event) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.handled[id] {
		return nil
	}
	if err := r.handle(received); err != nil {
		return err
	}
	r.handled[id] = true
	return nil
}

func main() {
	r, err := newReceiver(os.Getenv("WEBHOOK_SECRET"), func(e event) error {
		_, err := fmt.Fprintln(os.Stdout, e.Type, e.Data.JobID, string(e.Data.FinalOutput))
		return err
	})
	if err == nil {
		server := &http.Server{Addr: "127.0.0.1:9000", Handler: r, ReadTimeout: 10 * time.Second}
		err = server.ListenAndServe()
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
