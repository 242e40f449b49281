package main

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/lucius-project/lucius/internal/config"
)

// Profiles are served at their own address and at no other.
func TestProfiles_AreServedOnLoopbackAlone(t *testing.T) {
	t.Parallel()
	address, stop, err := serveProfiles(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/debug/pprof/goroutine?debug=1", nil)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(response.Body)
	_ = response.Body.Close()
	if err != nil || !strings.HasPrefix(string(body), "goroutine profile:") {
		t.Errorf("%d %.80s, %v", response.StatusCode, body, err)
	}
	if _, _, err := serveProfiles(t.Context(), address); err == nil || !strings.Contains(err.Error(), "LUCIUS_DEBUG_ADDR") {
		t.Errorf("an address in use: %v", err)
	}
	for _, bad := range []string{"0.0.0.0:6060", "6060"} {
		_, err := config.LoadArgs([]string{"--debug-addr", bad}, nil)
		if err == nil || !strings.Contains(err.Error(), "LUCIUS_DEBUG_ADDR") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}
