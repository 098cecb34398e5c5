package e2e

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"rsc.io/script"
)

// probeVerb asks as kubelet's gRPC probes do.
func probeVerb(w *world) script.Cmd {
	return verb("[NAME] [SERVICE]", "ask the gRPC health service of a process, as kubelet's liveness probe does", "probe liveness", func(_ *script.State, args []string) (string, error) {
		p, rest, err := w.named(args)
		if err != nil {
			return "", err
		}
		service := ""
		if len(rest) > 0 {
			service, rest = rest[0], rest[1:]
		}
		if len(rest) > 0 {
			return "", noMore(nil, rest)
		}
		address, err := p.said("serve health probes", "address")
		if err != nil {
			return "", err
		}
		conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return "", err
		}
		defer conn.Close() // nothing can be lost
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		answer, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{Service: service})
		if err == nil && answer.Status != healthpb.HealthCheckResponse_SERVING {
			err = fmt.Errorf("it is %s", answer.Status)
		}
		return "", err
	})
}
