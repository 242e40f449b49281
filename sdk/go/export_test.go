package lucius

import "net/http"

// Transport returns the transport of a client without an HTTPClient of its own.
func (c *Client) Transport() *http.Transport { return c.http.Transport.(*http.Transport) }
