package contracttest_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/lucius-project/lucius/pkg/httpapi/contracttest"
)

// answering returns a server, and a client for it that collects its faults.
func answering(t *testing.T, handler http.HandlerFunc) (url string, client *http.Client, faults *[]error) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Request-Id", "r")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		handler(w, r)
	}))
	t.Cleanup(server.Close)
	faults = new([]error)
	return server.URL, &http.Client{Transport: &contracttest.Transport{
		Base: server.Client().Transport, Contract: newContract(t), Fault: func(err error) { *faults = append(*faults, err) },
	}}, faults
}

// ask sends a request, and returns the received body and the error that ended it.
func ask(t *testing.T, client *http.Client, method, url, body string) (status int, received string, err error) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := client.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = response.Body.Close() }()
	data, err := io.ReadAll(response.Body)
	return response.StatusCode, string(data), err
}

func TestTransportPassesExchangesOnAndReportsFaults(t *testing.T) {
	t.Parallel()
	var sent string
	url, client, faults := answering(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		sent = string(body)
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Location", "/v1/jobs/j1")
		w.WriteHeader(http.StatusAccepted)
		_, _ = io.WriteString(w, receipt)
	})
	if status, received, err := ask(t, client, http.MethodPost, url+"/v1/commands", command); err != nil || status != 202 || received != receipt {
		t.Errorf("%d %s, %v", status, received, err)
	}
	if sent != command || len(*faults) > 0 {
		t.Errorf("the server got %s; faults %v", sent, *faults)
	}
	if _, _, err := ask(t, client, http.MethodPost, url+"/v1/commands", "{}"); err != nil {
		t.Error(err)
	}
	if len(*faults) != 1 || !strings.Contains((*faults)[0].Error(), "and was accepted") {
		t.Errorf("faults %v", *faults)
	}
}

func TestTransportDoesNotWaitForAStreamToEnd(t *testing.T) {
	t.Parallel()
	read := make(chan struct{})
	url, client, faults := answering(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, ": waiting\n\n")
		_ = http.NewResponseController(w).Flush()
		<-read
	})
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/v1/jobs/j1/events", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	response, err := client.Do(request)
	close(read)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	if data, err := io.ReadAll(response.Body); err != nil || string(data) != ": waiting\n\n" || len(*faults) > 0 {
		t.Errorf("%q, %v; faults %v", data, err, *faults)
	}
}

func TestTransportReturnsABrokenResponseAsFarAsItCame(t *testing.T) {
	t.Parallel()
	url, client, faults := answering(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "half")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	_, received, err := ask(t, client, http.MethodGet, url+"/v1/jobs/j1", "")
	if received != "half" || !errors.Is(err, io.ErrUnexpectedEOF) || len(*faults) > 0 {
		t.Errorf("%q, %v; faults %v", received, err, *faults)
	}
}

func TestTransportReturnsTheErrorsOfBothSides(t *testing.T) {
	t.Parallel()
	url, client, faults := answering(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	if _, _, err := ask(t, client, http.MethodGet, url+"/v1/jobs/j1", ""); err == nil {
		t.Error("a connection that breaks off is no error")
	}
	unread := errors.New("unread")
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/commands", failing{unread})
	if err != nil {
		t.Fatal(err)
	}
	response, err := client.Do(request)
	if err == nil {
		_ = response.Body.Close()
	}
	if !errors.Is(err, unread) || len(*faults) > 0 {
		t.Errorf("%v; faults %v", err, *faults)
	}
}

// failing is a body that cannot be read.
type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }
