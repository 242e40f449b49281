//go:build integration

package azurite_test

import (
	"context"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/lucius-project/lucius/internal/azurite"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start starts a server that ends with the test.
func start(t *testing.T) *azurite.Server {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	server, err := azurite.Start(ctx)
	if err != nil {
		t.Fatalf("start: %v", err)
	}
	t.Cleanup(server.Stop)
	return server
}

func TestServersRunSideBySideAndEndWithStop(t *testing.T) {
	t.Parallel()
	servers := []*azurite.Server{start(t), start(t)}
	if servers[0].Addr() == servers[1].Addr() {
		t.Fatalf("two servers listen at %s", servers[0].Addr())
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for _, server := range servers {
		if !strings.Contains(server.ConnectionString(), "TableEndpoint=http://"+server.Addr()+"/") {
			t.Errorf("connection string %q does not name %s", server.ConnectionString(), server.Addr())
		}
		reply, err := client.Get("http://" + server.Addr() + "/devstoreaccount1/Tables")
		if err != nil {
			t.Fatalf("ask the server: %v", err)
		}
		_ = reply.Body.Close()
		if reply.StatusCode != http.StatusForbidden {
			t.Errorf("a request without credentials: %s, want 403", reply.Status)
		}
		server.Stop()
		server.Stop()
		if conn, err := net.Dial("tcp", server.Addr()); err == nil {
			_ = conn.Close()
			t.Errorf("%s still listens after Stop", server.Addr())
		}
	}
}

func TestServerEndsWhenItsParentDoes(t *testing.T) {
	t.Parallel()
	server := start(t)
	azurite.Orphan(server) // Returns only when the process has closed its output.
	if conn, err := net.Dial("tcp", server.Addr()); err == nil {
		_ = conn.Close()
		t.Errorf("%s still listens", server.Addr())
	}
}

func TestStartSaysWhatIsMissing(t *testing.T) { //nolint:paralleltest // It changes the process's environment.
	for name, test := range map[string]struct {
		prepare func(t *testing.T)
		want    string
	}{
		"npm": {func(t *testing.T) {
			t.Helper()
			t.Setenv("PATH", t.TempDir())
			t.Setenv("HOME", t.TempDir())
			t.Setenv("XDG_CACHE_HOME", t.TempDir())
		}, "npm"},
		"the repository": {func(t *testing.T) {
			t.Helper()
			t.Chdir(t.TempDir())
		}, filepath.Join("tools", "azurite")},
	} {
		t.Run(name, func(t *testing.T) {
			test.prepare(t)
			server, err := azurite.Start(t.Context())
			if err == nil {
				server.Stop()
				t.Fatal("it started")
			}
			if !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %q does not name %s", err, test.want)
			}
		})
	}
}

func TestStartGivesUpWithItsContext(t *testing.T) {
	t.Parallel()
	start(t) // The first start installs it.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if server, err := azurite.Start(ctx); err == nil {
		server.Stop()
		t.Error("it started under a context that had ended")
	}
}
