package aztablestore_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/data/aztables"
	"go.uber.org/goleak"

	"github.com/lucius-project/lucius/internal/azurite"
	"github.com/lucius-project/lucius/pkg/tablestore/aztablestore"
)

// emulator is the Azurite that all tests share. The first test that needs it
// starts it.
var emulator = sync.OnceValues(func() (*azurite.Server, error) {
	started.Store(true)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	return azurite.Start(ctx)
})

var started atomic.Bool

// tests runs the tests and stops the emulator.
type tests struct{ *testing.M }

func (t tests) Run() int {
	code := t.M.Run()
	if started.Load() {
		if server, err := emulator(); err == nil {
			server.Stop()
		}
	}
	return code
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(tests{m}) }

// connection returns the account under test: the one that the environment
// names, or Azurite.
func connection(t testing.TB) string {
	t.Helper()
	if account := os.Getenv("LUCIUS_TEST_TABLE_CONNECTION"); account != "" {
		return account
	}
	server, err := emulator()
	if err != nil {
		t.Fatalf("azurite: %v", err)
	}
	return server.ConnectionString()
}

var (
	run    = "lucius" + strings.ToLower(rand.Text()[:10])
	serial atomic.Int64
)

// tables returns two table names that no other test uses, and deletes the
// tables when the test ends. Names are not reused, because Azure takes a while
// to delete a table.
func tables(t testing.TB) [2]string {
	t.Helper()
	n := serial.Add(1)
	names := [2]string{fmt.Sprintf("%s%da", run, n), fmt.Sprintf("%s%db", run, n)}
	t.Cleanup(func() { deleteTables(t, names) })
	return names
}

func deleteTables(t testing.TB, names [2]string) {
	t.Helper()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	service, err := aztables.NewServiceClientFromConnectionString(connection(t), &aztables.ClientOptions{
		ClientOptions: policy.ClientOptions{Transport: &http.Client{Transport: transport}}})
	if err != nil {
		t.Errorf("connect: %v", err)
		return
	}
	for _, name := range names {
		_, _ = service.DeleteTable(context.WithoutCancel(t.Context()), name, nil) // The table may not exist.
	}
}

// open opens a store, which must succeed, and closes it when the test ends.
func open(t testing.TB, options aztablestore.Options) *aztablestore.Store {
	t.Helper()
	store, err := aztablestore.Open(t.Context(), options)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return store
}
