package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	resourceapi "k8s.io/api/resource/v1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
)

// A socket is a connection to a plugin, as kubelet has one.
type socket struct {
	driver string
	conn   *grpc.ClientConn
	client drapb.DRAPluginClient
}

// dial connects to the socket of a driver and makes the connection warm.
func (b *bench) dial(ctx context.Context, driver, file string) (*socket, error) {
	// A socket's path may have 108 bytes; a link makes it short.
	link := filepath.Join(b.work, driver)
	if err := os.Symlink(b.pluginDir(driver), link); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("connect to driver %s: %w", driver, err)
	}
	conn, err := grpc.NewClient("unix://"+filepath.Join(link, file), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("connect to driver %s: %w", driver, err)
	}
	s := &socket{driver: driver, conn: conn, client: drapb.NewDRAPluginClient(conn)}
	if _, err := s.client.NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{}, grpc.WaitForReady(true)); err != nil {
		return nil, errors.Join(fmt.Errorf("connect to driver %s: %w", driver, err), s.close())
	}
	return s, nil
}

func (s *socket) close() error {
	if err := s.conn.Close(); err != nil {
		return fmt.Errorf("close connection: %w", err)
	}
	return nil
}

func wireClaim(c *resourceapi.ResourceClaim) []*drapb.Claim {
	return []*drapb.Claim{{Uid: string(c.UID), Namespace: c.Namespace, Name: c.Name}}
}

// prepare makes the call that kubelet makes before it starts a pod with one claim.
func (s *socket) prepare(ctx context.Context, c *resourceapi.ResourceClaim) error {
	answer, err := s.client.NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{Claims: wireClaim(c)})
	if err == nil {
		one := answer.GetClaims()[string(c.UID)]
		switch {
		case one.GetError() != "":
			err = errors.New(one.GetError())
		case len(one.GetDevices()) != 1:
			err = fmt.Errorf("it answers with %d devices", len(one.GetDevices()))
		}
	}
	if err != nil {
		return fmt.Errorf("prepare claim %s: %w", c.Name, err)
	}
	return nil
}

// unprepare makes the call that kubelet makes when the pod is gone.
func (s *socket) unprepare(ctx context.Context, c *resourceapi.ResourceClaim) error {
	answer, err := s.client.NodeUnprepareResources(ctx, &drapb.NodeUnprepareResourcesRequest{Claims: wireClaim(c)})
	if err == nil {
		if one := answer.GetClaims()[string(c.UID)]; one == nil || one.GetError() != "" {
			err = fmt.Errorf("it answers %q", one.GetError())
		}
	}
	if err != nil {
		return fmt.Errorf("unprepare claim %s: %w", c.Name, err)
	}
	return nil
}
