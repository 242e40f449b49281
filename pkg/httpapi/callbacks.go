package httpapi

import "net/http"

// CallbackAck is POST /v1/callbacks/ack.
func (e *endpoints) CallbackAck(w http.ResponseWriter, r *http.Request) {
	serve(e, w, r, e.bodies.lenient, e.callbacks.Ack)
}

// CallbackHeartbeat is POST /v1/callbacks/heartbeat.
func (e *endpoints) CallbackHeartbeat(w http.ResponseWriter, r *http.Request) {
	serve(e, w, r, e.bodies.lenient, e.callbacks.Heartbeat)
}

// CallbackResult is POST /v1/callbacks/result.
func (e *endpoints) CallbackResult(w http.ResponseWriter, r *http.Request) {
	serve(e, w, r, e.bodies.lenient, e.callbacks.Result)
}
