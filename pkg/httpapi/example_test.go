package httpapi_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lucius-project/lucius/pkg/auth"
	"github.com/lucius-project/lucius/pkg/httpapi"
)

func ExampleNew() {
	h := harness{store: newTestStore()}
	if err := h.assemble(context.Background()); err != nil { // The program makes its use cases.
		fmt.Println(err)
		return
	}
	server, err := httpapi.New(httpapi.Config{
		UseCases: h.useCases, Ready: h.ready, Registry: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler),
		Auth: auth.New(auth.Config{}), // On loopback no credential is needed.
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	response := httptest.NewRecorder()
	server.ServeHTTP(response, httptest.NewRequest(http.MethodGet, "/healthz", nil))
	body, _ := io.ReadAll(response.Body)
	fmt.Printf("%d %s", response.Code, body)
	// Output: 200 {"status":"ok"}
}
