package webhook_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain puts a proxy into the environment that is not there: what is sent in
// these tests arrives only if it does not go by it.
func TestMain(m *testing.M) {
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY"} {
		if err := os.Setenv(name, "http://192.0.2.1:1"); err != nil {
			panic(err)
		}
	}
	goleak.VerifyTestMain(m)
}
